// *Traffic*: bytes by round and by purpose.

import { LineChart } from "../charts.js";
import { axis, lastRound, Sums } from "../curves.js";
import { el, section, setRows, setText, table } from "../dom.js";
import { bytes, percent, seconds } from "../format.js";
import { RECEIVED, ROUND_SECONDS, SENT } from "../rounds.js";
import { roundsInAll, shown } from "../state.js";
import { Tiles } from "../tiles.js";
import { PURPOSES } from "../words.js";

const part = {};

// Makes the view, once.
export function make(root) {
  part.tiles = new Tiles();
  [part.sent, part.received] = [new Sums(SENT), new Sums(RECEIVED)];
  part.chart = new LineChart({ title: "Bytes by round and node", format: bytes, floor: 0, lines: [
    { name: "sent", colour: "first", width: 2 }, { name: "received", colour: "second", width: 2, dash: [8, 5] }] });
  part.since = el("p", { class: "hint" });
  part.purposes = table("Bytes by purpose", ["Purpose", "What it is", { text: "Sent", number: true }, { text: "Received", number: true },
    { text: "Share of sent", number: true }]);
  part.nodes = table("Bytes of each node", ["Node", { text: "Sent in its rounds", number: true }, { text: "Received in its rounds", number: true },
    { text: "Sent in the last round", number: true }, { text: "Received in the last round", number: true }]);
  root.append(part.tiles.root, section("By round", "Everything on the wire, encrypted. Of several nodes the mean is drawn.", part.chart.root),
    section("By purpose", null, part.since, part.purposes.scroll), section("Node by node", null, part.nodes.scroll));
}

// Brings it up to date.
export function update({ state, picked }) {
  const nodes = shown(state, picked);
  const rounds = lastRound(nodes);
  const [sent, received] = [part.sent.update(nodes), part.received.update(nodes)];
  const end = Math.max(rounds, (nodes[0] && roundsInAll(state, nodes[0])) || 0, 2);
  part.chart.set(axis(rounds), [sent.means, received.means], { range: [1, end] });
  part.tiles.set(tilesOf(nodes, sent.sums, received.sums));
  updatePurposes(nodes);
  setRows(part.nodes, nodes.map((node) => ({
    key: node.index, cells: [node.name, bytes(total(node.rows, SENT)), bytes(total(node.rows, RECEIVED)), bytes(node.rows.newest(SENT)),
      bytes(node.rows.newest(RECEIVED))],
  })));
}

// Sums of a node's rows are kept: they grow with each row only.
function total(rows, column) {
  const key = `${column}`;
  rows.totals ??= {};
  const kept = rows.totals[key];
  const isKept = kept && kept.replaced === rows.replaced && kept.length <= rows.length;
  let { sum, length } = isKept ? kept : { sum: 0, length: 0 };
  for (; length < rows.length; length += 1) sum += rows.at(column, length) || 0;
  rows.totals[key] = { sum, length, replaced: rows.replaced };
  return rows.length > 0 ? sum : NaN;
}

function tilesOf(nodes, sent, received) {
  const all = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
  const n = Math.max(1, sent.filter((value) => value !== null).length);
  const tellers = Math.max(1, nodes.filter((node) => node.rows.length > 0).length);
  const time = nodes.map((node) => node.rows.newest(ROUND_SECONDS)).filter((value) => !Number.isNaN(value));
  return [{ key: "sent", name: "Sent in all rounds", value: bytes(all(sent)), note: `${bytes(all(sent) / n / tellers)} a node and round` },
    { key: "received", name: "Received in all rounds", value: bytes(all(received)), note: `${bytes(all(received) / n / tellers)} a node and round` },
    { key: "time", name: "Last round took", value: seconds(Math.max(...time)), note: time.length > 1 ? "on the slowest node" : "" }];
}

function updatePurposes(nodes) {
  const live = nodes.filter((node) => node.status?.traffic);
  const told = live.length > 0
    ? live.map((node) => node.status.traffic)
    : nodes.filter((node) => node.last).map((node) => ({ sent: node.last.bytes_sent, received: node.last.bytes_received }));
  setText(part.since, live.length > 0 ? "Since the daemons started." : told.length > 0
    ? "In the last round: no daemon runs that could tell more." : "Nothing is known yet.");
  const sum = (way, key) => told.reduce((all, one) => all + (one[way]?.[key] ?? 0), 0);
  const wire = sum("sent", "wire");
  const rows = PURPOSES.map(([key, name, hint]) => ({ key, name, hint, sent: sum("sent", key), received: sum("received", key) }));
  const other = (way, whole) => Math.max(0, whole - rows.reduce((all, row) => all + row[way], 0));
  rows.push({ key: "other", name: "Envelope", hint: "Encryption, acknowledgements and whatever the network adds.",
    sent: other("sent", wire), received: other("received", sum("received", "wire")) });
  rows.push({ key: "wire", name: "Everything", hint: "All bytes on the sockets.", sent: wire, received: sum("received", "wire") });
  setRows(part.purposes, told.length === 0 ? [] : rows.map((row) => ({
    key: row.key, class: row.key === "wire" ? "total" : "",
    cells: [row.name, row.hint, bytes(row.sent), bytes(row.received), percent(wire > 0 ? row.sent / wire : NaN)],
  })));
}
