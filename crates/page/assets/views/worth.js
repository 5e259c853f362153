// *Worth*: whether joining was worth it, and how the models became what they are.

import { LineChart, showChart } from "../charts.js";
import { axis, lastRound, meanNow, ofNode, Spread } from "../curves.js";
import { el, section, setRows, setText, table } from "../dom.js";
import { capital, count, decimal, measured, percent, points, significant } from "../format.js";
import { BEFORE, LOSS, ROUND, SCORE, SOURCES, TEST_SAMPLES } from "../rounds.js";
import { nameOf, roundsInAll, scoreOf, shown, trainers } from "../state.js";
import { Tiles } from "../tiles.js";
import { MEASURES } from "../words.js";

const part = {};
const MANY = [
  { name: "mean after the exchange", colour: "first", width: 3 },
  { name: "worst tenth after the exchange", colour: "second", width: 2, dash: [8, 5] },
  { name: "mean before the exchange", colour: "third", width: 2, dash: [2, 4] },
];
const ONE = [
  { name: "after the exchange", colour: "first", width: 3 },
  { name: "before the exchange", colour: "third", width: 2, dash: [2, 4] },
  { name: "mean of all nodes", colour: "muted", width: 1, dash: [8, 5] },
];

// Makes the view, once.
export function make(root) {
  part.tiles = new Tiles();
  part.note = el("p", { class: "hint" });
  part.measured = el("p", { class: "hint" });
  part.after = new Spread(SCORE);
  part.before = new Spread(BEFORE);
  part.many = new LineChart({ title: "By round", lines: MANY, format: percent, thin: "each node after the exchange" });
  part.one = new LineChart({ title: "This node by round", lines: ONE, format: percent });
  part.table = table("Each node", ["Node", { text: "Served", number: true, hint: "How good its model is on its test samples" },
    { text: "Alone", number: true, hint: "How good a model of its own data alone is" }, { text: "Difference", number: true },
    { text: "Before the exchange", number: true }, { text: "Loss", number: true, hint: "On the test samples: lower is better" },
    { text: "Foreign sources", number: true }, { text: "Test samples", number: true }, { text: "Round", number: true }]);
  root.append(part.tiles.root, part.note, part.measured,
    section("Round by round", "The exchange is what the nodes get from each other in a round: experts, or the mean of their models.",
      part.many.root, part.one.root),
    section("Node by node", "Served: with the others' help. Alone: a model of the node's own data only.",
      part.table.scroll));
}

// Brings it up to date.
export function update({ state, picked }) {
  const all = trainers(state.nodes);
  const nodes = trainers(shown(state, picked));
  const isOne = picked !== null;
  part.tiles.set(isOne && all.length > 1 ? tilesOfNode(state, nodes[0]) : tilesOf(state, nodes));
  setText(part.note, isOne && state.summary && all.length > 1 ? "" : noteOf(state, nodes));
  setText(part.measured, measuredOf(state));
  const measure = scoreOf(state);
  for (const chart of [part.many, part.one]) chart.format = (value) => measured(measure, value);
  part.many.rename(`${capital(measure.word)} by round`);
  part.one.rename(`${capital(measure.word)} of this node by round`);
  showChart(part.one, isOne);
  showChart(part.many, !isOne);
  const end = Math.max(lastRound(nodes), (nodes[0] && roundsInAll(state, nodes[0])) || 0, 2);
  const options = { range: [1, end] };
  if (isOne) drawOne(nodes[0], all, { measure, options });
  else drawMany(nodes, { measure, options });
  setRows(part.table, nodes.map((node) => rowOf(state, node)));
}

function tilesOf(state, nodes, told = state.summary) {
  if (!told || typeof told.served !== "number") {
    return [{ key: "so-far", name: `${capital(scoreOf(state).word)} so far`, value: measured(scoreOf(state), meanNow(nodes) ?? NaN), note: "after the exchange" },
      { key: "alone", name: "Alone", value: "not known yet" }];
  }
  const [low, high] = told.interval ?? [NaN, NaN];
  const measure = measureOf(state);
  const tiles = [{ key: "served", name: "Served", value: measured(measure, told.served), note: `${measure.word} with the others' help` },
    { key: "alone", name: "Alone", value: measured(measure, told.alone), note: "each node with its own data only" },
    { key: "difference", name: "Difference", value: gain(measure, told.difference),
      note: told.interval ? `95 % interval: ${gain(measure, low)} to ${gain(measure, high)}` : "" }];
  const worst = told.worst_node;
  if (worst) {
    const name = state.nodes[worst.shard - 1]?.name ?? `node ${worst.shard}`;
    tiles.push({ key: "worst", name: `Worst node: ${name}`, value: measured(measure, worst.served), note: `alone ${measured(measure, worst.alone)}, ${count(worst.test_samples)} test samples` });
  }
  return tiles;
}

function tilesOfNode(state, node) {
  const told = node && toldOf(state, node);
  if (!told || typeof told.served !== "number") return node ? tilesOf(state, [node], null) : [];
  const measure = measureOf(state);
  return [{ key: "served", name: "Served", value: measured(measure, told.served), note: `${measure.word} with the others' help` },
    { key: "alone", name: "Alone", value: measured(measure, told.alone), note: "with its own data only" },
    { key: "difference", name: "Difference", value: gain(measure, gained(measure, told)), note: `on ${count(told.test_samples)} test samples` }];
}

const measureOf = (state) => MEASURES[state.summary?.measure] ?? MEASURES.accuracy;

// Returns by how much a node is better served than alone.
const gained = (measure, { served, alone }) => (measure.isLess ? alone - served : served - alone);

// Writes by how much something is better.
function gain(measure, better) {
  if (measure.isShare) return points(better);
  return better > 0 ? `+${significant(better)}` : significant(better).replace("-", "−");
}

function measuredOf(state) {
  const { word, isLess } = measureOf(state);
  if (!state.summary?.measure || word === "accuracy") return "";
  return `Served and alone are judged by ${word}${isLess ? ", of which less is better" : ""}.`;
}

const toldOf = (state, node) => state.summary?.per_node?.find((one) => (node.id ? one.node_id === node.id : one.shard === node.index + 1));

function noteOf(state, nodes) {
  if (nodes.length === 0) return "An aggregator has no model of its own. Look at a node.";
  const told = state.summary;
  if (told && typeof told.alone === "number") {
    const [low, high] = told.interval ?? [NaN, NaN];
    if (low > 0) return "The whole interval is above zero: the nodes are better together than alone, beyond what chance explains.";
    if (high < 0) return "The whole interval is below zero: the nodes are worse together than alone.";
    return told.interval ? "The interval contains zero: chance may explain the difference." : "";
  }
  if (state.kind === "swarm" || state.kind === "simulation") {
    return "How each node does alone is measured after the last round: a model is then trained on each node's own data only. A run with “--no-control” leaves that out.";
  }
  return "How the node does alone is not measured here. Make a federation of one, with “fednode init alone --nodes 1 --algorithm local” and the same data. "
    + "Train it with “fednode start --exit-when-finished”, then compare “fednode evaluate” of both.";
}

function drawMany(nodes, { measure, options }) {
  const after = part.after.update(nodes, measure.isLess);
  const before = part.before.update(nodes, measure.isLess);
  const thinLines = nodes.map(thinOf).filter((line) => line[0].length > 0);
  part.many.set(axis(after.mean.length), [after.mean, after.worst, before.mean], { ...options, thinLines });
}

// One line's points where they are known. It is made anew only after new rows.
function thinOf(node) {
  const { rows } = node;
  const key = rows.length + rows.replaced;
  if (node.thin?.key === key) return node.thin.line;
  const [xs, ys] = [[], []];
  for (let position = 0; position < rows.length; position += 1) {
    const value = rows.at(SCORE, position);
    if (Number.isNaN(value)) continue;
    xs.push(rows.at(ROUND, position));
    ys.push(value);
  }
  node.thin = { key, line: [xs, ys] };
  return node.thin.line;
}

function drawOne(node, all, { measure, options }) {
  if (!node) return part.one.set([], [[], [], []], options);
  const rounds = Math.max(lastRound(all), node.rows.last);
  const fill = (values) => Object.assign(new Array(rounds).fill(null), values);
  const mean = all.length > 1 ? part.after.update(all, measure.isLess).mean : [];
  return part.one.set(axis(rounds), [fill(ofNode(node, SCORE)), fill(ofNode(node, BEFORE)), fill(mean)], options);
}

function rowOf(state, node) {
  const told = toldOf(state, node);
  const { rows } = node;
  const measure = measureOf(state);
  // Before there is a verdict the newest score stands there; afterwards a node without test samples has none.
  const score = scoreOf(state);
  const served = state.summary?.measure ? measured(measure, told?.served) : measured(score, rows.newest(SCORE));
  const difference = typeof told?.served === "number" && typeof told?.alone === "number" ? gained(measure, told) : NaN;
  return {
    key: node.index, class: difference < 0 ? "worse" : "",
    cells: [node.id ? nameOf(state, node.id) : node.name, served, measured(measure, told?.alone), gain(measure, difference), measured(score, rows.newest(BEFORE)),
      decimal(rows.newest(LOSS), 3), count(rows.newest(SOURCES)), count(rows.newest(TEST_SAMPLES)), count(rows.last)],
  };
}

