// *Privacy*: what left each node, and what that means.

import { el, keyed, section, setRows, setText, show, table } from "../dom.js";
import { count, list, moment, of, short, tiny } from "../format.js";
import { shown, trainers } from "../state.js";
import { Tiles } from "../tiles.js";

const part = {};
const MOST_RELEASES = 200;

// Makes the view, once.
export function make(root) {
  part.tiles = new Tiles();
  part.words = el("ul", { class: "words" });
  part.nodes = table("Privacy of each node", ["Node", "Mode", { text: "ε promised", number: true, hint: "The smaller, the stronger the promise" },
    { text: "δ", number: true, hint: "The probability with which the promise may fail" }, { text: "ε budget", number: true }, { text: "Releases", number: true }]);
  part.releases = table("What was released, newest first", ["What", "Node", "When", { text: "ε", number: true }]);
  part.none = el("p", { class: "nothing", text: "Nothing has been released so far, as far as the records tell." });
  root.append(part.tiles.root, section("In plain words", null, part.words), section("Node by node", null, part.nodes.scroll),
    section("Releases", "Each is counted before it is published, in the file privacy.json of the state folder.", part.none, part.releases.scroll));
}

// Brings it up to date.
export function update({ state, picked }) {
  const nodes = trainers(shown(state, picked));
  const told = nodes.filter((node) => node.privacy);
  part.tiles.set(tilesOf(state, told));
  keyed(part.words, wordsOf(nodes, told), (words) => words, () => el("li"), setText);
  setRows(part.nodes, nodes.map(rowOf));
  const releases = told.flatMap((node) => (node.privacy.releases ?? []).map((release, place) => ({ node, release, place })));
  releases.sort((a, b) => (b.release.at ?? 0) - (a.release.at ?? 0));
  show(part.none, releases.length === 0);
  show(part.releases.scroll, releases.length > 0);
  setRows(part.releases, releases.slice(0, MOST_RELEASES).map(({ node, release, place }) => ({
    key: `${node.index} ${place}`,
    cells: [release.what, node.name, moment(release.at), release.epsilon === null ? "no bound" : short(release.epsilon)],
  })));
}

const epsilonOf = (value) => (typeof value === "number" ? short(value) : "no bound");

function rowOf(node) {
  const own = node.privacy;
  if (!own) return { key: node.index, cells: [node.name, "nothing released yet", "–", "–", "–", "–"] };
  const isOpen = own.mode === "open";
  return { key: node.index, cells: [node.name, isOpen ? "open" : "bounded (dp)", epsilonOf(own.epsilon), isOpen ? "–" : tiny(own.delta),
    typeof own.budget_epsilon === "number" ? short(own.budget_epsilon) : "none set", count((own.releases ?? []).length)] };
}

function tilesOf(state, told) {
  const modes = [...new Set(told.map((node) => (node.privacy.mode === "open" ? "open" : "bounded")))];
  const mode = modes.length > 0 ? list(modes) : state.summary?.privacy?.mode ?? "not known yet";
  const bounded = told.filter((node) => typeof node.privacy.epsilon === "number");
  const most = Math.max(...bounded.map((node) => node.privacy.epsilon));
  const releases = told.reduce((sum, node) => sum + (node.privacy.releases ?? []).length, 0);
  const tiles = [{ key: "mode", name: "Mode", value: mode, note: mode === "open" ? "what is shared has no noise" : mode === "bounded" ? "noise bounds what can be learnt" : "" }];
  tiles.push({ key: "epsilon", name: "ε", value: bounded.length > 0 && bounded.length === told.length ? short(most) : told.length > 0 ? "no bound" : "–",
    note: "smaller is a stronger promise" });
  tiles.push({ key: "releases", name: "Released", value: told.length > 0 ? count(releases) : "–", note: "times something was published" });
  return tiles;
}

function wordsOf(nodes, told) {
  if (nodes.length === 0) return ["An aggregator has no data. It sees what the nodes publish, as every member does."];
  if (told.length === 0) return ["Nothing has left the nodes so far, as far as the records tell. Each release is counted before it is published, and then listed here."];
  const words = ["Rows, images and texts stay where they are. What leaves a node is what its algorithm shares: parameters of models, experts, or statistics."];
  const open = told.filter((node) => node.privacy.mode === "open");
  if (open.length > 0) {
    const who = open.length === nodes.length && open.length > 1 ? "All nodes share" : `${list(open.map((node) => node.name))} ${open.length === 1 ? "shares" : "share"}`;
    words.push(`${who} in open mode: as it is, without noise. There is no bound on what members can learn from it. With few samples, a member may find out whether one sample was among them.`);
    words.push("“fednode privacy” measures at home how much it tells. “--privacy dp:4” of a new federation bounds it.");
  }
  for (const node of told.filter((one) => typeof one.privacy.epsilon === "number" && one.privacy.mode !== "open").slice(0, 3)) words.push(boundOf(node));
  const over = told.filter((node) => typeof node.privacy.budget_epsilon === "number" && node.privacy.epsilon > node.privacy.budget_epsilon);
  if (over.length > 0) words.push(`${list(over.map((node) => node.name))} promised less than the owner's budget allows: look at it.`);
  words.push("That a node takes part, when and how long, can be seen by all members. So can predictions that a node serves, by whoever asks for them.");
  return words;
}

function boundOf(node) {
  const { epsilon, delta, budget_epsilon: budget } = node.privacy;
  const odds = Math.exp(epsilon);
  const factor = odds < 100 ? odds.toFixed(1) : count(Math.round(odds));
  const left = typeof budget === "number" ? ` Its owner allows ε = ${short(budget)}: ${short(Math.max(0, budget - epsilon))} is left.` : "";
  const releases = (node.privacy.releases ?? []).length;
  return `${node.name} published with noise (${of(releases, "release")}). Whether one training sample is there or not changes the odds of what it published by a factor of `
    + `${factor} at most (e^ε with ε = ${short(epsilon)}), but for a probability of δ = ${tiny(delta)}.${left}`;
}
