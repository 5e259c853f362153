// Which view is seen and which node is picked. Both are in the address (`#who/3`), so that a link leads back there.

import { el, keyed, setAttribute, setText, show } from "./dom.js";

// Makes the tabs and the picker; `changed(isMoved)` is called when another view or node is asked for.
export function makeNav(views, changed) {
  const tabs = document.getElementById("tabs");
  const picker = document.getElementById("picker");
  const select = document.getElementById("node");
  let filled = null;
  const links = views.map((view) => el("a", { href: `#${view.id}`, text: view.name }));
  tabs.append(...links);
  tabs.addEventListener("keydown", (event) => onKey(event, links));
  window.addEventListener("hashchange", () => changed(true));
  select.addEventListener("change", () => go(where().view.id, select.value === "" ? null : Number(select.value)));

  const where = () => {
    const [id, node] = decode(location.hash).split("/");
    const view = views.find((one) => one.id === id) ?? views[0];
    return { view, node: /^\d{1,6}$/.test(node ?? "") ? Number(node) : null };
  };
  const go = (id, picked) => {
    location.hash = picked === null ? id : `${id}/${picked}`;
  };

  const update = (state) => {
    const { view } = where();
    const chosen = picked(state);
    links.forEach((link, position) => {
      const { id } = views[position];
      setAttribute(link, "href", chosen === null || state.nodes.length < 2 ? `#${id}` : `#${id}/${chosen}`);
      setAttribute(link, "aria-current", id === view.id ? "page" : null);
    });
    show(picker, state.nodes.length > 1);
    const names = namesOf(state);
    if (names !== filled) fillPicker(select, state);
    filled = names;
    const value = chosen === null ? "" : String(chosen);
    if (select.value !== value) select.value = value;
  };
  const picked = (state) => {
    if (state.nodes.length === 1) return 0;
    const { node } = where();
    return node !== null && node < state.nodes.length ? node : null;
  };
  return { update, picked, go, view: () => where().view };
}

function decode(hash) {
  return hash.replace(/^#/, "");
}

// The picker is made anew only if this changes.
const namesOf = (state) => `${state.started} ${state.nodes.map((node) => node.name).join("\n")}`;

function fillPicker(select, state) {
  const options = [{ value: "", name: "all nodes" }];
  for (const node of state.nodes) options.push({ value: String(node.index), name: node.name });
  const create = (option) => el("option", { value: option.value });
  select.replaceChildren();
  keyed(select, options, (option) => option.value, create, (element, option) => setText(element, option.name));
}

// Arrows move between tabs; the tabulator key works as in any list of links.
function onKey(event, links) {
  const at = links.indexOf(document.activeElement);
  const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 };
  if (at < 0 || !(event.key in steps)) return;
  event.preventDefault();
  const next = links[(steps[event.key] + links.length) % links.length];
  next.focus();
  next.click();
}
