// The graph of members: nodes on a circle, a line for each pair, drawn by how the two reach each other. Colour and dashes
// both tell the way. All lines of one way are one path, since twenty thousand elements would be slow.

import { el, keyed, setAttribute, setText, show, svg } from "./dom.js";
import { count, letters } from "./format.js";
import { LINES, ROUTES } from "./words.js";

const SIZE = 520;
const HEIGHT = 440;
const RADIUS = 190;
const MOST_LABELS = 48;
// More lines are a blot; direct ones are then left out until somebody asks.
const MOST_DIRECT = 600;

// Returns members and links of a graph, as the given nodes see them. A pair has the better of its two ways.
export function membersOf(state, nodes) {
  const members = new Map();
  for (const node of nodes) {
    const id = node.id ?? `node ${node.index}`;
    members.set(id, { id, name: node.name, role: node.role, isRunning: node.state === "running" });
  }
  const places = new Map();
  const placeOf = (id) => {
    if (!places.has(id)) places.set(id, places.size);
    return places.get(id);
  };
  for (const id of members.keys()) placeOf(id);
  const links = new Map();
  for (const node of nodes) {
    const from = placeOf(node.id ?? `node ${node.index}`);
    for (const peer of node.peers) {
      if (!members.has(peer.node_id)) {
        const name = state.names.get(peer.node_id) ?? letters(peer.node_id);
        members.set(peer.node_id, { id: peer.node_id, name, role: peer.role ?? "of unknown role", isRunning: peer.route !== "none" });
      }
      const to = placeOf(peer.node_id);
      const key = from < to ? from * 65536 + to : to * 65536 + from;
      const route = ROUTES[peer.route] ?? ROUTES.none;
      const before = links.get(key);
      if (before === undefined || route.rank < before.rank) links.set(key, route);
    }
  }
  return { members: [...members.values()], links };
}

// The drawing with its legend.
export class Graph {
  constructor() {
    this.lines = Object.fromEntries(Object.keys(LINES).map((line) => [line, svg("path", { class: `link ${line}` })]));
    this.dots = svg("g");
    this.drawing = svg("svg", { viewBox: `0 0 ${SIZE} ${HEIGHT}`, role: "img", class: "graph" }, ...Object.values(this.lines), this.dots);
    this.all = el("input", { type: "checkbox", change: () => this.draw() });
    this.choice = el("label", { class: "check" }, this.all, el("span", { text: "draw the direct lines too" }));
    this.legend = el("ul", { class: "legend" });
    this.root = el("div", { class: "graph-host" }, this.legend, this.choice, this.drawing);
    this.key = "";
  }

  // Shows members and links, if they changed; `centre` is drawn in the middle.
  set({ members, links }, centre) {
    const key = `${centre} ${members.map((one) => `${one.id}${one.name}${one.isRunning}`).join()} ${fingerprint(links)}`;
    if (key === this.key) return;
    Object.assign(this, { key, members, links, centre });
    this.draw();
  }

  draw() {
    const counts = Object.fromEntries(Object.keys(LINES).map((line) => [line, 0]));
    for (const route of this.links.values()) counts[route.line] += 1;
    show(this.choice, counts.direct > MOST_DIRECT);
    const isDirectDrawn = counts.direct <= MOST_DIRECT || this.all.checked;
    const places = this.places();
    const paths = Object.fromEntries(Object.keys(LINES).map((line) => [line, []]));
    for (const [key, route] of this.links) {
      if (route.line === "direct" && !isDirectDrawn) continue;
      const [from, to] = [places[Math.floor(key / 65536)], places[key % 65536]];
      if (from && to) paths[route.line].push(`M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${to.x.toFixed(1)} ${to.y.toFixed(1)}`);
    }
    for (const [line, path] of Object.entries(this.lines)) {
      setAttribute(path, "d", null);
      if (paths[line].length > 0) path.setAttribute("d", paths[line].join(""));
      setAttribute(path, "class", `link ${line}${paths[line].length > 300 ? " many" : ""}`);
    }
    this.drawMembers(places);
    this.fillLegend(counts);
    const words = Object.entries(counts).filter(([, n]) => n > 0).map(([line, n]) => `${n} ${LINES[line][0]}`).join(", ");
    setAttribute(this.drawing, "aria-label", `${this.members.length} members, and how pairs of them reach each other: ${words || "no links known"}. The view Members says the same as a table.`);
  }

  places() {
    const onCircle = this.members.filter((one) => one.id !== this.centre);
    const place = (turn) => ({ x: SIZE / 2 + RADIUS * Math.sin(turn), y: HEIGHT / 2 - RADIUS * Math.cos(turn), turn });
    return this.members.map((one) => {
      if (one.id === this.centre && this.members.length > 1) return { x: SIZE / 2, y: HEIGHT / 2, turn: null };
      return place((2 * Math.PI * onCircle.indexOf(one)) / Math.max(1, onCircle.length));
    });
  }

  drawMembers(places) {
    const radius = this.members.length > MOST_LABELS ? 3 : 9;
    const shape = ({ one, place }) => one.role === "aggregator"
      ? svg("rect", { x: place.x - radius, y: place.y - radius, width: 2 * radius, height: 2 * radius, rx: 2 })
      : svg("circle", { cx: place.x, cy: place.y, r: radius });
    const create = (item) => {
      const group = svg("g", {}, shape(item), svg("title"));
      const { place, one } = item;
      if (this.members.length > MOST_LABELS && place.turn !== null) return group;
      const away = place.turn === null ? { x: place.x, y: place.y + 26, anchor: "middle" }
        : { x: place.x + 16 * Math.sin(place.turn), y: place.y - 16 * Math.cos(place.turn) + 4,
          anchor: Math.abs(Math.sin(place.turn)) < 0.2 ? "middle" : Math.sin(place.turn) > 0 ? "start" : "end" };
      group.append(svg("text", { x: away.x, y: away.y, "text-anchor": away.anchor, text: one.name.length > 12 ? `${one.name.slice(0, 11)}…` : one.name }));
      return group;
    };
    const items = this.members.map((one, at) => ({ one, place: places[at] }));
    keyed(this.dots, items, ({ one, place }) => `${one.id} ${one.name} ${place.x} ${place.y} ${radius}`, create, (element, { one }) => {
      setAttribute(element, "class", `member ${one.role === "aggregator" ? "aggregator" : "node"} ${one.isRunning ? "running" : "stopped"}`);
      setText(element.querySelector("title"), `${one.name}, ${one.role}, ${one.isRunning ? "running" : "not running"}`);
    });
  }

  fillLegend(counts) {
    const entries = Object.entries(LINES).map(([line, [word, hint]]) => ({ line, word, hint, n: counts[line] }));
    const create = ({ line, hint }) => {
      const sample = svg("svg", { viewBox: "0 0 34 8", width: "34", height: "8", "aria-hidden": "true" }, svg("path", { class: `link ${line}`, d: "M1 4L33 4" }));
      return el("li", { title: hint }, sample, el("span"));
    };
    keyed(this.legend, entries, ({ line }) => line, create, (element, { word, n }) => {
      setText(element.lastChild, `${word}: ${count(n)}`);
    });
  }
}

function fingerprint(links) {
  let sum = links.size;
  for (const [key, route] of links) sum = (sum * 31 + key * 7 + route.rank) % 2147483647;
  return sum;
}
