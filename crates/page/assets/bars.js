// Bars of what a round's time went to. Work is plain and waits are striped, so that colour is not needed to tell them apart.

import { el, keyed, setAttribute, setStyle, setText } from "./dom.js";
import { seconds } from "./format.js";
import { EVALUATE, EXPERTS, GLOBAL, MERGE, PUBLISH, ROUND_SECONDS, SAVE, TRAIN_SECONDS } from "./rounds.js";
import { PARTS } from "./words.js";

const COLUMNS = { train: TRAIN_SECONDS, publish: PUBLISH, experts: EXPERTS, global: GLOBAL, merge: MERGE, evaluate: EVALUATE, save: SAVE };

// Returns what a round's time went to: from its whole record where there is one, else from its row.
export function partsOf(record, rows, position) {
  const known = record
    ? { ...record.waited_seconds, train: record.train_seconds }
    : Object.fromEntries(Object.entries(COLUMNS).map(([key, column]) => [key, rows.at(column, position)]));
  const whole = record ? record.round_seconds : rows.at(ROUND_SECONDS, position);
  const told = PARTS.filter((part) => known[part.key] > 0).map((part) => ({ part, value: known[part.key] }));
  const sum = told.reduce((all, { value }) => all + value, 0);
  // Evaluation may overlap the exchange: the parts may add up to more than the round.
  const rest = (Number.isNaN(whole) ? 0 : whole) - sum;
  if (rest > 0.001) told.push({ part: PARTS[PARTS.length - 1], value: rest });
  return { told, whole: Math.max(whole || 0, sum), round: whole };
}

// Says in words what a round's time went to.
export function wordsOf(parts) {
  return parts.told.map(({ part, value }) => `${part.word} ${seconds(value)}`).join(", ");
}

// Makes an empty bar.
export const makeBar = () => el("div", { class: "stack", role: "img" });

// Fills a bar; `longest` is the time that takes its whole width.
export function setBar(bar, parts, longest, label) {
  setAttribute(bar, "aria-label", `${label}: ${wordsOf(parts) || "nothing known"}`);
  const create = ({ part }) => el("span", { class: `part ${part.key}${part.isWait ? " waits" : ""}` });
  keyed(bar, parts.told, ({ part }) => part.key, create, (element, { part, value }) => {
    setStyle(element, "width", `${(100 * value) / longest}%`);
    setAttribute(element, "title", `${part.word}: ${seconds(value)}`);
  });
}

// Makes the legend of all bars.
export function makeLegend() {
  const entry = (part) => el("li", { title: part.hint }, el("span", { class: `swatch part ${part.key}${part.isWait ? " waits" : ""}` }),
    el("span", { text: part.word }));
  return el("ul", { class: "legend" }, ...PARTS.map(entry));
}

// A list of bars below each other: rows are { key, name, parts }.
export class BarList {
  constructor() {
    this.root = el("ol", { class: "bars" });
  }

  set(rows) {
    const longest = rows.reduce((most, row) => Math.max(most, row.parts.whole), 1e-9);
    const create = () => el("li", {}, el("span", { class: "bar-name" }), makeBar(), el("span", { class: "bar-value" }));
    keyed(this.root, rows, (row) => row.key, create, (element, row) => {
      setText(element.children[0], row.name);
      setBar(element.children[1], row.parts, longest, row.name);
      setText(element.children[2], seconds(row.parts.round));
    });
  }
}
