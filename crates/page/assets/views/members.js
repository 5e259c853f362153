// *Members*: a table of peers, as one node or all nodes see them.

import { el, section, setRows, setText, show, table } from "../dom.js";
import { count, decimal, letters, list, moment, seconds } from "../format.js";
import { shown } from "../state.js";
import { ROUTES } from "../words.js";

const part = {};

// Makes the view, once.
export function make(root) {
  part.table = table("Members", ["Name", { text: "Id", hint: "The last eight characters" }, "Role", "How reached", "Connected since",
    { text: "Round trip", number: true, hint: "How long a question and its answer take" }, "Software",
    { text: "Strikes", number: true, hint: "What was held against it, faded with time. 0 is a clean record." }]);
  part.note = el("p", { class: "hint" });
  part.nothing = el("p", { class: "nothing", text: "No daemon runs, so nobody is connected. Only the nodes of this folder are listed." });
  root.append(section("Members", null, part.note, part.nothing, part.table.scroll));
}

// Brings it up to date.
export function update({ state, picked }) {
  const nodes = shown(state, picked);
  const watched = nodes.filter((node) => node.peers.length > 0);
  const isOne = nodes.length === 1;
  show(part.note, watched.length > 0);
  setText(part.note, isOne ? `As ${nodes[0].name} sees them.` : "As all nodes of this folder see them: the median round trip, and the most strikes.");
  show(part.nothing, watched.length === 0);
  const views = gather(nodes);
  const rows = [];
  for (const node of isOne ? [] : nodes) {
    const id = node.id ?? `node ${node.index}`;
    rows.push(rowOf(id, node.name, node.id, node.role, views.get(id) ?? []));
    views.delete(id);
  }
  for (const [id, seen] of views) rows.push(rowOf(id, state.names.get(id) ?? seen[0].name ?? "–", id, roleOf(seen), seen));
  setRows(part.table, rows);
}

// What was never connected has no role until others tell.
const roleOf = (seen) => seen.find((peer) => peer.role)?.role ?? "–";

// What every node says of each member.
function gather(nodes) {
  const views = new Map();
  for (const node of nodes) {
    for (const peer of node.peers) {
      const seen = views.get(peer.node_id);
      if (seen) seen.push(peer);
      else views.set(peer.node_id, [peer]);
    }
  }
  return views;
}

function rowOf(key, name, id, role, seen) {
  const trips = seen.map((peer) => peer.rtt_milliseconds).filter((trip) => typeof trip === "number").sort((a, b) => a - b);
  const connected = Math.max(-1, ...seen.map((peer) => (isConnected(peer) ? peer.connected_seconds : -1)));
  const strikes = Math.max(0, ...seen.map((peer) => peer.score ?? 0));
  const software = [...new Set(seen.map((peer) => peer.software).filter(Boolean))];
  const trip = trips.length > 0 ? trips[Math.floor(trips.length / 2)] : NaN;
  return {
    key, class: strikes >= 1 || isCutOff(seen) ? "trouble" : "",
    cells: [name, id ? letters(id) : "–", role, reached(seen), connected < 0 ? "–" : `${moment(since(connected))} (${seconds(connected)})`,
      Number.isNaN(trip) ? "–" : seconds(trip / 1000), list(software, 2) || "–", seen.length === 0 ? "–" : strikes === 0 ? "0" : decimal(strikes, 1)],
  };
}

// Half of those who tell cannot reach it.
const isCutOff = (seen) => seen.filter((peer) => peer.route === "none").length * 2 > seen.length;
const isConnected = (peer) => peer.route !== "others" && peer.route !== "none";
// Rounded to seconds, or else the moment would change with every event.
const since = (connected) => Math.round((Date.now() - connected * 1000) / 10000) * 10000;

// Says how a member is reached: by one node in full, by many as counts.
function reached(seen) {
  if (seen.length === 0) return "–";
  if (seen.length === 1) return oneReached(seen[0]);
  const ways = new Map();
  for (const peer of seen) {
    const line = lineOf(peer);
    ways.set(line, (ways.get(line) ?? 0) + 1);
  }
  const told = Object.keys(WORDS).filter((line) => ways.has(line)).map((line) => `${WORDS[line]} by ${count(ways.get(line))}`);
  return ways.size === 1 ? `${told[0]} (all)` : list(told, 4);
}

const WORDS = { direct: "directly", relayed: "relayed", others: "through others", none: "not at all" };
const lineOf = (peer) => (ROUTES[peer.route] ?? ROUTES.none).line;

function oneReached(peer) {
  const word = ROUTES[peer.route]?.word ?? peer.route;
  if (peer.route === "relay" && peer.relay) return `${word} by ${letters(peer.relay)}`;
  return isConnected(peer) ? word : `${word}: ${peer.why ?? "no connection"}`;
}

