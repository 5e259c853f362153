// *Log*: the lines of all nodes, newest first, with filters.

import { el, keyed, setText, show } from "../dom.js";
import { moment, of } from "../format.js";

// More lines than anybody reads; fewer than a browser minds.
const MOST_SHOWN = 250;
const part = { held: null };

// Makes the view, once.
export function make(root, { redraw }) {
  part.text = el("input", { type: "search", id: "log-text", placeholder: "part of a line", input: redraw, autocomplete: "off", spellcheck: "false" });
  part.trouble = el("input", { type: "checkbox", id: "log-trouble", change: redraw });
  part.hold = el("button", { type: "button", text: "Hold", "aria-pressed": "false", title: "Keeps the list as it is while you read", click: () => {
    part.held = part.held ? null : part.lines;
    redraw();
  } });
  part.count = el("p", { class: "hint" });
  part.list = el("ol", { class: "log" });
  part.nothing = el("p", { class: "nothing" });
  root.append(el("section", { class: "card" },
    el("div", { class: "filters" }, el("label", { for: "log-text", text: "Search" }), part.text,
      el("label", { class: "check" }, part.trouble, el("span", { text: "trouble only" })), part.hold),
    part.count, part.nothing,
    el("div", { class: "scroll log-scroll", tabindex: "0", role: "region", "aria-label": "Lines of the log" }, part.list)));
}

// Brings it up to date.
export function update({ state, picked }) {
  const all = picked === null ? state.log : state.nodes[picked]?.log ?? [];
  part.lines = filtered(all);
  const lines = part.held ?? part.lines;
  const isMany = state.nodes.length > 1;
  setText(part.hold, part.held ? "Go on" : "Hold");
  part.hold.setAttribute("aria-pressed", String(part.held !== null));
  setText(part.count, countOf(lines, all));
  show(part.nothing, lines.length === 0);
  setText(part.nothing, all.length === 0 ? "Nothing has been logged yet." : "No line fits the filter.");
  keyed(part.list, lines, (line) => line.key, (line) => makeLine(line, isMany), () => {});
}

// From the newest line on, until there are enough.
function filtered(all) {
  const text = part.text.value.trim().toLowerCase();
  const found = [];
  for (let place = all.length - 1; place >= 0 && found.length < MOST_SHOWN; place -= 1) {
    const line = all[place];
    if (part.trouble.checked && !line.isTrouble) continue;
    if (text && !line.text.toLowerCase().includes(text) && !line.node.name.toLowerCase().includes(text)) continue;
    found.push(line);
  }
  return found;
}

function countOf(lines, all) {
  const held = part.held ? " The list is held." : "";
  const end = lines.length === MOST_SHOWN && all.length > MOST_SHOWN ? `The newest ${of(lines.length, "line")} that fit` : of(lines.length, "line");
  return `${end}, of ${of(all.length, "line")} that are kept.${held}`;
}

function makeLine(line, isMany) {
  return el("li", { class: line.isTrouble ? "trouble" : null }, el("time", { text: line.isTimed ? moment(line.at) : "" }),
    isMany ? el("span", { class: "by", text: line.node.name }) : null,
    line.isTrouble ? el("strong", { text: "trouble" }) : null, el("span", { class: "said", text: line.text }));
}
