// *Now*: what each node does, what it waits for, and where the time of the last rounds went.

import { BarList, makeBar, makeLegend, partsOf, setBar } from "../bars.js";
import { el, keyed, section, setAttribute, setRows, setStyle, setText, show, table } from "../dom.js";
import { capital, count, decimal, measured, moment, of, seconds } from "../format.js";
import { meanNow } from "../curves.js";
import { ROUND, SCORE } from "../rounds.js";
import { roundsInAll, scoreOf, shown, trainers } from "../state.js";
import { Tiles } from "../tiles.js";
import { owed, waitedSeconds, waitWords } from "../waits.js";
import { ADDING, PARTS, PHASES } from "../words.js";

const LAST_ROUNDS = 12;
const MOST_OWING = 5;
const STATES = { running: "running", stopped: "stopped", unreachable: "unreachable" };
const ROWS_A_TURN = 16;
const part = { seen: new Set(), turn: 0 };

// Makes the view, once.
export function make(root, { redraw }) {
  part.sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) part.seen.add(target);
      else part.seen.delete(target);
    }
    redraw();
  });
  part.tiles = new Tiles();
  part.owed = table("Who is waited for, the longest waits", ["Who", { text: "Nodes that wait", number: true }, "For what",
    { text: "Longest wait", number: true }]);
  part.owedCard = section("Who is waited for", "One slow member can hold up many. Look here first.", part.owed.scroll);
  part.nodes = el("ol", { class: "nodes" });
  part.bars = new BarList();
  part.table = table("Time of the last rounds", ["Round", ...PARTS.map((one) => ({ text: one.word, number: true, hint: one.hint })),
    { text: "whole round", number: true }]);
  part.details = el("details", {}, el("summary", { text: "Show these times as a table" }), part.table.scroll);
  part.barsCard = section("The last rounds", "Each bar is a round: plain parts are work, striped parts are waits, dotted parts are not told apart.", makeLegend(),
    part.bars.root, part.details);
  part.legend = el("div", {}, el("p", { class: "hint", text: "The bars show the newest round of each node: plain parts are work, striped parts are waits, dotted parts are not told apart." }),
    makeLegend());
  part.nothing = el("p", { class: "nothing", text: "There are no nodes yet. The page shows them as soon as they start." });
  root.append(part.tiles.root, part.owedCard, part.nothing, part.legend, part.nodes, part.barsCard);
}

// Brings it up to date.
export function update({ state, picked }) {
  const nodes = shown(state, picked);
  const time = Date.now();
  show(part.nothing, nodes.length === 0);
  part.tiles.set(tilesOf(state, nodes, time));
  const owing = owed(state, nodes, time);
  show(part.owedCard, owing.length > 0 && nodes.length > 1);
  setRows(part.owed, owing.slice(0, MOST_OWING).map((one) => ({
    key: one.id, cells: [one.name, one.by, one.what, seconds(one.longest)],
  })));
  const isOne = nodes.length === 1;
  show(part.legend, !isOne && nodes.some((node) => node.rows.length > 0));
  updateNodes(nodes, { state, time, isOne });
  show(part.barsCard, isOne && nodes[0].rows.length > 0);
  if (isOne) updateRounds(nodes[0]);
}

// Rows in sight follow at once. The others take turns: two hundred at a time would take longer than a frame.
function updateNodes(nodes, options) {
  part.turn = (part.turn + ROWS_A_TURN) % Math.max(1, nodes.length);
  const isTurn = (at) => (at - part.turn + nodes.length) % nodes.length < ROWS_A_TURN;
  const isMoved = part.shownNodes !== nodes.length || part.isOne !== options.isOne;
  Object.assign(part, { shownNodes: nodes.length, isOne: options.isOne });
  const create = (node) => {
    const element = makeNode();
    part.sight.observe(element);
    updateNode(element, node, options);
    return element;
  };
  let at = 0;
  keyed(part.nodes, nodes, (node) => node.index, create, (element, node) => {
    if (part.seen.has(element) || isMoved || isTurn(at)) updateNode(element, node, options);
    at += 1;
  });
}

function tilesOf(state, nodes, time) {
  const training = trainers(nodes);
  const tiles = [];
  if (training.length === 0) return tiles;
  const rounds = training.map((node) => node.status?.round ?? node.rows.last);
  const total = roundsInAll(state, training[0]);
  const least = Math.min(...rounds);
  const most = Math.max(...rounds);
  const span = least === most ? count(most) : `${count(least)}–${count(most)}`;
  tiles.push({ key: "round", name: "Round", value: most === 0 ? "none yet" : span, note: total ? `of ${count(total)}` : "" });
  const running = training.filter((node) => node.state === "running");
  const waiting = running.filter((node) => isWaiting(node));
  if (running.length > 0) {
    const longest = waiting.flatMap((node) => node.status.waiting_for.map((wait) => waitedSeconds(node, wait, time)));
    tiles.push({ key: "waiting", name: "Waiting for others", value: `${count(waiting.length)} of ${count(running.length)}`,
      note: waiting.length > 0 ? `longest ${seconds(Math.max(...longest))}` : "nobody holds anybody up" });
  }
  const score = meanNow(training);
  if (score !== null) {
    const measure = scoreOf(state);
    tiles.push({ key: "score", name: `${capital(measure.word)} now`, value: measured(measure, score), note: training.length > 1 ? "mean over test samples" : "of its test samples" });
  }
  const trouble = nodes.reduce((sum, node) => sum + node.nTrouble, 0);
  tiles.push({ key: "trouble", name: "Trouble in the log", value: trouble === 0 ? "none" : of(trouble, "line"), note: trouble === 0 ? "" : "see Log" });
  return tiles;
}

const isWaiting = (node) => (node.status?.waiting_for ?? []).some((wait) => wait.cause !== "own-work" && wait.seconds >= 0)
  && !node.status.finished;

function makeNode() {
  const meter = () => el("div", { class: "meter", "aria-hidden": "true" }, el("span"));
  return el("li", { class: "node card" },
    el("div", { class: "node-who" }, el("h3"), el("span", { class: "chip state" }), el("p", { class: "hint" })),
    el("div", { class: "node-progress" }, el("p"), meter(), el("p", { class: "hint" }), meter()),
    el("div", { class: "node-waits" }, el("p"), el("p", { class: "hint" })),
    el("div", { class: "node-bar" }, makeBar(), el("p", { class: "hint" })));
}

function updateNode(element, node, { state, time, isOne }) {
  const [who, progress, waits, bar] = element.children;
  const phase = node.status && node.role === "aggregator" ? ADDING : PHASES[node.status?.phase];
  setText(who.children[0], node.name);
  setText(who.children[1], STATES[node.state] ?? "not known yet");
  setAttribute(who.children[1], "class", `chip state ${node.state ?? "stopped"}`);
  setText(who.children[2], node.role === "aggregator" ? "An aggregator: it adds up what the nodes send, and trains nothing."
    : node.status?.trainer ? `${node.status.trainer.model} on ${node.status.trainer.device}, ${of(node.status.trainer.train_samples, "sample")}` : "");
  updateProgress(progress, node, { state, phase });
  updateWaits(waits, node, { state, time });
  const hasBar = !isOne && node.rows.length > 0;
  show(bar, hasBar);
  setAttribute(element, "class", isOne ? "node card single" : "node card");
  if (!hasBar) return;
  const parts = newest(node);
  setBar(bar.children[0], parts, parts.whole || 1, `Round ${node.rows.last} of ${node.name}`);
  const measure = scoreOf(state);
  const score = measured(measure, node.rows.newest(SCORE));
  setText(bar.children[1], `Round ${node.rows.last} took ${seconds(parts.round)}, ${measure.word} ${score}`);
}

function newest(node) {
  const record = node.last?.round === node.rows.last ? node.last : null;
  return partsOf(record, node.rows, node.rows.length - 1);
}

function updateProgress(element, node, { state, phase }) {
  const [line, meter, inner, innerMeter] = element.children;
  const { status } = node;
  if (!status && node.role === "aggregator") {
    setText(line, "An aggregator keeps no records of rounds.");
    for (const other of [meter, inner, innerMeter]) show(other, false);
    return;
  }
  show(inner, true);
  const round = status?.round ?? node.rows.last;
  const total = roundsInAll(state, node);
  const isDone = status?.finished || (total && node.rows.last >= total);
  const word = isDone ? "Done" : phase?.[0] ?? (node.state === "running" ? "At work" : "Last known");
  setText(line, round > 0 ? `${word}: round ${count(round)}${total ? ` of ${count(total)}` : ""}` : `${word}: no rounds yet`);
  show(meter, Boolean(total));
  const training = status?.training;
  const within = training ? ((training.epoch - 1) + training.batch / Math.max(1, training.batches)) / Math.max(1, training.epochs) : 0;
  if (total) setStyle(meter.firstChild, "width", `${Math.min(100, (100 * (isDone ? total : Math.max(0, round - 1 + within))) / total)}%`);
  setText(inner, training
    ? `Epoch ${training.epoch} of ${training.epochs}, batch ${training.batch} of ${training.batches}, loss ${decimal(training.loss)}`
    : phase?.[1] ?? "");
  show(innerMeter, Boolean(training));
  if (training) setStyle(innerMeter.firstChild, "width", `${Math.min(100, 100 * within)}%`);
}

function updateWaits(element, node, { state, time }) {
  const [line, more] = element.children;
  setAttribute(element, "class", "node-waits");
  if (node.problem) {
    setAttribute(element, "class", "node-waits trouble");
    setText(line, node.problem);
    return setText(more, "");
  }
  const wait = node.state === "running" ? node.status?.waiting_for?.[0] : null;
  if (!wait) {
    setText(line, node.state === "running" ? "It waits for nobody." : "No daemon runs on its folder. What is shown is from its records.");
    return setText(more, node.last?.started_at ? `The last round began at ${moment(node.last.started_at)}.` : "");
  }
  const words = waitWords(state, node, wait, time);
  const others = node.status.waiting_for.length - 1;
  setText(line, words.what);
  return setText(more, [words.why, words.ends, words.remedy, others > 0 ? `It waits for ${of(others, "more thing")}.` : ""].filter(Boolean).join(" "));
}

function updateRounds(node) {
  const rows = [];
  for (let position = node.rows.length - 1; position >= 0 && rows.length < LAST_ROUNDS; position -= 1) {
    const round = node.rows.at(ROUND, position);
    rows.push({ key: round, name: `round ${round}`, parts: partsOf(node.records.get(round), node.rows, position) });
  }
  part.bars.set(rows);
  setRows(part.table, rows.map(({ key, parts }) => {
    const timeOf = (one) => parts.told.find((told) => told.part === one)?.value ?? NaN;
    return { key, cells: [`${key}`, ...PARTS.map((one) => seconds(timeOf(one))), seconds(parts.round)] };
  }));
}
