// Elements of the page: made, filled with text and kept in lists.
//
// Texts may be hostile: names of peers, notes, the federation's name. They come in by `textContent` alone, here and nowhere
// else, and go through `plain` first. No other module sets text or markup.

import { plain } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const SHOWN = Symbol("the text that is shown");
const ROWS = Symbol("rows by key");
const MANY_COLUMNS = 5;

// Makes an element. `text` is its text, functions are listeners, everything else is an attribute.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// Makes an element of a drawing.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") setText(element, value);
    else if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : plain(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets an element's text, if it changed.
export function setText(element, text) {
  const shown = plain(text ?? "");
  if (element[SHOWN] === shown) return;
  element[SHOWN] = shown;
  element.textContent = shown;
}

// Sets an attribute, if it changed; `null` takes it away.
export function setAttribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const shown = plain(value);
  if (element.getAttribute(name) !== shown) element.setAttribute(name, shown);
}

// Shows or hides an element.
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

// Sets a style, if it changed.
export function setStyle(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

// Makes the children of `parent` follow `items`: elements of known keys are kept, and only updated.
export function keyed(parent, items, keyOf, create, update) {
  const before = parent[ROWS] ?? new Map();
  const now = new Map();
  items.forEach((item, position) => {
    const key = keyOf(item, position);
    const element = before.get(key) ?? create(item);
    before.delete(key);
    now.set(key, element);
    update(element, item);
  });
  for (const element of before.values()) element.remove();
  let next = parent.firstChild;
  for (const element of now.values()) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
  parent[ROWS] = now;
}

// Makes a table with a caption that moves sideways where it is too wide.
export function table(caption, heads) {
  const row = el("tr");
  for (const head of heads) {
    const attributes = { scope: "col", class: head.number ? "number" : null, title: head.hint };
    row.append(el("th", { ...attributes, text: head.text ?? head }));
  }
  const body = el("tbody");
  const title = el("caption", { text: caption });
  const whole = el("table", { class: heads.length > MANY_COLUMNS ? "wide" : null }, title, el("thead", {}, row), body);
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
  return { scroll, body, heads, title };
}

// Fills a table: each row has a key and one text per column; the first one heads it.
export function setRows(made, rows) {
  const create = () => {
    const cell = (head, column) => column === 0
      ? el("th", { scope: "row" })
      : el("td", { class: head.number ? "number" : null });
    return el("tr", {}, ...made.heads.map(cell));
  };
  const update = (element, row) => {
    row.cells.forEach((text, column) => setText(element.children[column], text));
    setAttribute(element, "class", row.class ?? "");
  };
  keyed(made.body, rows, (row) => row.key, create, update);
}

// Makes a part of a view with a heading.
export function section(heading, hint, ...children) {
  const words = hint ? el("p", { class: "hint", text: hint }) : null;
  return el("section", { class: "card" }, el("h3", { text: heading }), words, ...children);
}
