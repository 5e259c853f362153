// What is known: one object that the events change and the views read. It knows no element and no clock but `now`.

import { letters } from "./format.js";
import { Rounds } from "./rounds.js";
import { MEASURES } from "./words.js";

const MOST_LINES_OF_A_NODE = 500;
const MOST_LINES = 5000;
const MOST_RECORDS = 24;

// Makes the state before the first event.
export function empty() {
  return {
    version: 0, started: null, kind: null, title: "fednode", problems: [], folder: "", software: "", nodes: [], summary: null, names: new Map(),
    log: [], nLines: 0, connection: "connecting",
  };
}

function newNode(index, name, role) {
  return {
    index, name, role, id: null, state: null, problem: null, status: null, heard: 0, peers: [], experts: null, privacy: null,
    card: null, rows: new Rounds(), last: null, records: new Map(), log: [], nTrouble: 0, version: 0,
  };
}

// Returns a node, and makes it where it is new: a run may grow.
function nodeAt(state, index) {
  if (!Number.isInteger(index) || index < 0 || index > 100000) return null;
  while (state.nodes.length <= index) {
    const next = state.nodes.length;
    state.nodes.push(newNode(next, `node ${next + 1}`, "node"));
  }
  return state.nodes[index];
}

// Takes the event `federation` in; `isNew` says that a connection begins with it, and everything follows again.
export function onFederation(state, event, isNew) {
  if (isNew || event.started !== state.started) {
    Object.assign(state, { nodes: [], summary: null, names: new Map(), log: [], nLines: 0 });
  }
  state.started = event.started;
  state.kind = event.kind;
  state.title = event.title || "fednode";
  state.problems = event.problems ?? [];
  state.folder = event.folder ?? "";
  state.software = event.version ?? "";
  for (const said of event.nodes ?? []) {
    const node = nodeAt(state, said.index);
    if (!node) continue;
    node.name = said.name || `node ${said.index + 1}`;
    node.role = said.role ?? "node";
    if (said.node_id) identify(state, node, said.node_id);
    else if (node.id) state.names.set(node.id, node.name);
  }
}

function identify(state, node, id) {
  if (!id || node.id === id) return;
  node.id = id;
  state.names.set(id, node.name);
}

// Takes the event `node` in. What it does not name stays as it is.
export function onNode(state, event, now) {
  const node = nodeAt(state, event.index);
  if (!node) return;
  for (const key of ["state", "problem", "status", "experts", "privacy", "card"]) {
    if (key in event) node[key] = event[key];
  }
  if ("peers" in event) node.peers = event.peers ?? [];
  for (const [id, name] of Object.entries(event.names ?? {})) {
    if (!state.names.has(id)) state.names.set(id, name);
  }
  node.heard = now;
  node.version += 1;
  identify(state, node, node.status?.node_id ?? node.card?.node_id);
}

// Takes the event `rounds` in.
export function onRounds(state, event) {
  const node = nodeAt(state, event.index);
  if (!node) return;
  if (event.reset) Object.assign(node, { rows: new Rounds(), last: null, records: new Map() });
  for (const row of event.rows ?? []) node.rows.add(row);
  if (event.last) {
    node.last = event.last;
    node.records.set(event.last.round, event.last);
    if (node.records.size > MOST_RECORDS) node.records.delete(node.records.keys().next().value);
    identify(state, node, event.last.node_id);
  }
  node.version += 1;
}

// Takes the event `summary` in.
export function onSummary(state, event) {
  state.summary = event;
  // Shards count from 1, in the order of the nodes.
  for (const told of event?.per_node ?? []) {
    const node = state.nodes[told.shard - 1];
    if (node?.role === "node") identify(state, node, told.node_id);
  }
}

// Takes the event `log` in: lines of one node, in the order of their times.
export function onLog(state, event) {
  const node = nodeAt(state, event.index);
  if (!node) return;
  let at = node.log.at(-1)?.at ?? 0;
  const lines = (event.lines ?? []).map((line) => {
    at = line.at ?? at;
    state.nLines += 1;
    if (line.is_trouble) node.nTrouble += 1;
    return { key: state.nLines, node, at, isTimed: line.at !== null, text: line.text ?? "", isTrouble: !!line.is_trouble };
  });
  node.log = merged(node.log, lines, MOST_LINES_OF_A_NODE);
  state.log = merged(state.log, lines, MOST_LINES);
}

// Merges two ordered lists of lines, and keeps the newest.
function merged(old, added, most) {
  const ordered = added.slice().sort((a, b) => a.at - b.at);
  const first = ordered[0];
  let all;
  if (!first || old.length === 0 || old[old.length - 1].at <= first.at) {
    all = old.concat(ordered);
  } else {
    all = old.concat(ordered).sort((a, b) => a.at - b.at || a.key - b.key);
  }
  return all.length > most ? all.slice(all.length - most) : all;
}

// Returns what people call a node: its name here, else the end of its id.
export const nameOf = (state, id) => state.names.get(id) ?? letters(id);

// Returns the nodes that are looked at: the picked one, or all.
export function shown(state, picked) {
  const node = picked === null ? null : state.nodes[picked];
  return node ? [node] : state.nodes;
}

// Returns those that train: an aggregator does not.
export const trainers = (nodes) => nodes.filter((node) => node.role !== "aggregator");

// Returns the measure of the scores of rounds: that which the federation names, else accuracy, or R² of a number.
export function scoreOf(state) {
  const told = state.nodes.find((node) => node.status?.score)?.status.score
    ?? state.nodes.find((node) => node.last?.judged)?.last.judged.measure
    ?? (state.summary?.target ? "r2" : "accuracy");
  return MEASURES[told] ?? MEASURES.r2;
}

// Returns the rounds in all, as far as they are known.
export function roundsInAll(state, node) {
  return node.status?.rounds ?? node.card?.rounds ?? state.summary?.rounds ?? null;
}
