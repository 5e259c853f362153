// *Who*: how the members reach each other, and whose experts answer for whom.

import { el, keyed, section, setAttribute, setRows, setStyle, setText, show, table } from "../dom.js";
import { decimal, list, percent } from "../format.js";
import { Graph, membersOf } from "../graph.js";
import { Heat } from "../heat.js";
import { mapOfExperts, mapOfNodes, sourcesOf } from "../sources.js";
import { nameOf, shown, trainers } from "../state.js";
import { COMPONENTS } from "../words.js";

const MOST_BARS = 40;
const STRONGEST = 3;
const part = { measure: "weight" };

// Makes the view, once.
export function make(root, { state, redraw }) {
  part.graph = new Graph();
  part.alone = el("p", { class: "nothing" });
  part.heat = new Heat({
    row: (key) => (key.startsWith("expert ") || key.startsWith("node ") ? key : nameOf(state, key)),
    column: (id) => (id.startsWith("node ") ? id : nameOf(state, id)),
    cell: (value) => (part.measure === "weight" ? `${Math.round(100 * value)} %` : decimal(value)),
    number: (value) => (part.measure === "weight" ? percent(value) : decimal(value)),
  });
  const choice = (measure, word, hint) => el("label", { class: "check", title: hint },
    el("input", { type: "radio", name: "measure", value: measure, checked: measure === part.measure, change: () => {
      part.measure = measure;
      part.heat.map = null;
      redraw();
    } }), el("span", { text: word }));
  part.choices = el("fieldset", { class: "filters" }, el("legend", { text: "Colour shows" }),
    choice("weight", "weight", "How much of the mix is theirs"), choice("similarity", "similarity", "How alike the experts are, 1 is the same"));
  part.mapHint = el("p", { class: "hint" });
  part.nothing = el("p", { class: "nothing", text: "Nobody's experts are mixed in yet. That begins with the first exchange, and only with algorithms that share experts." });
  part.table = table("Strongest sources", ["Node", "Strongest sources, with their weight", { text: "Own share", number: true }, { text: "Sources", number: true }]);
  part.details = el("details", {}, el("summary", { text: "Show the map as a table" }), part.table.scroll);
  part.bars = el("ol", { class: "shares" });
  part.madeOf = el("p", {});
  part.served = section("What its model is made of", null, part.madeOf);
  part.answers = section("Whose experts answer for it", "The weight is each owner's share of the mix, over all own experts.", part.bars);
  part.mapCard = section("Whose experts are used", null, part.mapHint, part.choices, part.nothing, part.heat.root, part.details);
  root.append(el("div", { class: "pair" }, section("How members reach each other", null, part.graph.root, part.alone),
    part.mapCard), part.answers, part.served);
}

// Brings it up to date.
export function update({ state, picked }) {
  const nodes = shown(state, picked);
  const training = trainers(nodes);
  const graph = membersOf(state, nodes);
  part.graph.set(graph, nodes.length === 1 ? nodes[0].id ?? `node ${nodes[0].index}` : null);
  show(part.graph.root, graph.links.size > 0);
  show(part.alone, graph.links.size === 0);
  setText(part.alone, nodes.some((node) => node.state === "running") ? "Nobody has been reached so far." : "No links are known: no daemon runs that could tell them.");
  const isOne = training.length === 1 && nodes.length === 1;
  const map = isOne ? mapOfExperts(training[0], part.measure) : mapOfNodes(state, training, part.measure);
  const isKnown = map.values.some((value) => !Number.isNaN(value));
  const hasSources = training.some((node) => sourcesOf(node).size > 0);
  for (const element of [part.choices, part.heat.root, part.mapHint]) show(element, isKnown);
  show(part.mapCard, isKnown || !hasSources);
  show(part.nothing, !hasSources);
  show(part.details, hasSources && !isOne);
  setText(part.mapHint, isOne ? "Rows are the node's own experts. Columns are the owners of what is mixed into them."
    : "Rows are the nodes that use experts. Columns are the owners of these experts. The diagonal is a node's own share.");
  if (isKnown) part.heat.set(map);
  setRows(part.table, hasSources && !isOne ? training.map((node) => rowOf(state, node)) : []);
  show(part.answers, isOne && hasSources);
  if (isOne) updateShares(state, training[0]);
  const composition = isOne ? compositionOf(training[0]) : null;
  show(part.served, Boolean(composition));
  setText(part.madeOf, composition ? madeOf(composition) : "");
}

// After the last round there may be a pool, which no round's record knows.
function compositionOf(node) {
  const finished = node.status?.finished_evaluation ?? node.card?.finished;
  return finished ? finished.composition : node.last?.composition;
}

// Says what a served model is made of, and what was left out.
function madeOf({ shares, left_out: leftOut, trust }) {
  const word = (component) => COMPONENTS[component] ?? component;
  const isGated = shares.some((share) => share.weight === null);
  const parts = shares.map((share) => (share.weight === null ? word(share.component) : `${Math.round(100 * share.weight)} % ${word(share.component)}`));
  const sentences = [`It serves ${parts.join(", ")}${isGated ? ", weighed sample by sample" : ""}.`];
  if (typeof trust === "number") sentences.push(`A row of a peer counts ${Math.round(100 * trust)} % of an own one.`);
  if (leftOut?.length > 0) sentences.push(`Left out: ${leftOut.map(word).join(", ")}.`);
  return sentences.join(" ");
}

function rowOf(state, node) {
  const sources = [...sourcesOf(node)].sort((a, b) => b[1].weight - a[1].weight);
  const foreign = sources.filter(([owner, source]) => owner !== node.id && source.weight > 0);
  const strongest = foreign.slice(0, STRONGEST).map(([owner, source]) => `${nameOf(state, owner)} ${percent(source.weight)}`);
  const own = sourcesOf(node).get(node.id)?.weight ?? NaN;
  return { key: node.index, cells: [node.name, list(strongest, STRONGEST) || "nobody", percent(own), String(foreign.length)] };
}

function updateShares(state, node) {
  const sources = [...sourcesOf(node)].sort((a, b) => b[1].weight - a[1].weight).slice(0, MOST_BARS);
  const create = () => el("li", {}, el("span", { class: "bar-name" }), el("span", { class: "meter" }, el("span")), el("span", { class: "bar-value" }));
  keyed(part.bars, sources, ([owner]) => owner, create, (element, [owner, source]) => {
    const isOwn = owner === node.id;
    setAttribute(element, "class", isOwn ? "own" : "");
    setText(element.children[0], isOwn ? `${node.name} (its own)` : nameOf(state, owner));
    setStyle(element.children[1].firstChild, "width", `${Math.min(100, 100 * source.weight)}%`);
    setText(element.children[2], `${percent(source.weight)}, similarity ${decimal(source.similarity)}`);
  });
}
