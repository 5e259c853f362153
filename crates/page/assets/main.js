// The page: joins the stream, the state, the header and the views.
//
//     stream ──► state ──► (animation frame) ──► header and the one view that is seen
//
// A view's module has make(root, context), which runs once, and update(context).

import { el, show } from "./dom.js";
import { throttled } from "./frame.js";
import { makeHeader } from "./header.js";
import { makeNav } from "./nav.js";
import { empty } from "./state.js";
import { listen } from "./stream.js";

// The views. What one needs is fetched when it is first seen, or once the page is at rest.
const VIEWS = [
  { id: "now", name: "Now", title: "What happens now", load: () => import("./views/now.js"),
    hint: "What each node does, what it waits for, and where its time goes." },
  { id: "worth", name: "Worth", title: "Was it worth it?", load: () => import("./views/worth.js"),
    hint: "What the nodes get from each other, measured on test samples that no model has seen." },
  { id: "who", name: "Who", title: "Who helps whom", load: () => import("./views/who.js"),
    hint: "How the members reach each other, and whose experts answer for whom. An expert is a part of a model that others may use." },
  { id: "traffic", name: "Traffic", title: "What went over the network", load: () => import("./views/traffic.js"),
    hint: "Bytes that were sent and received, by round and by purpose." },
  { id: "privacy", name: "Privacy", title: "What left the nodes", load: () => import("./views/privacy.js"),
    hint: "The data themselves never leave a node. What a node shares is computed from them, and may tell something about them." },
  { id: "members", name: "Members", title: "Who takes part", load: () => import("./views/members.js"),
    hint: "The members that are known, how each is reached, and whether anything is held against one." },
  { id: "log", name: "Log", title: "What was logged", load: () => import("./views/log.js"),
    hint: "The newest line is on top. Pick a node above to see its lines only." },
];
const TICK = 1000;
const PRELOAD_PAUSE = 1000;

const state = empty();
const made = new Map();
const content = document.getElementById("content");
const context = { state, picked: null, go: (view, picked) => nav.go(view, picked), redraw: () => ask(true) };
const header = makeHeader();
const nav = makeNav(VIEWS, (isMoved) => {
  ask(true);
  if (isMoved) window.scrollTo(0, 0);
});
const ask = throttled(draw);

function draw() {
  nav.update(state);
  context.picked = nav.picked(state);
  header.update(state);
  const current = nav.view();
  if (!made.has(current.id)) make(current);
  for (const [id, { root }] of made) show(root, id === current.id);
  made.get(current.id).module?.update(context);
}

// Every view has a heading, a sentence on what it shows, and a body, which comes once its module is here.
async function make(view) {
  const body = el("div", { class: "body" });
  const root = el("section", { class: "view", id: `view-${view.id}`, "aria-labelledby": `head-${view.id}` },
    el("h2", { id: `head-${view.id}`, text: view.title }), el("p", { class: "lead", text: view.hint }), body);
  content.append(root);
  const entry = { root, module: null };
  made.set(view.id, entry);
  try {
    const module = await view.load();
    module.make(body, context);
    entry.module = module;
    ask(true);
  } catch (problem) {
    // The server may be gone. The next look at the view tries again.
    made.delete(view.id);
    root.remove();
    console.warn(`view ${view.id} does not load: ${problem.message}`);
  }
}

listen(state, () => ask());
// What is waited for grows older without an event.
setInterval(() => {
  if (!document.hidden && state.nodes.some((node) => node.state === "running")) ask();
}, TICK);
document.addEventListener("visibilitychange", () => ask(true));
// So that all views can be seen after the server has ended.
window.addEventListener("load", () => setTimeout(() => VIEWS.forEach((view) => view.load().catch(() => {})), PRELOAD_PAUSE));
ask(true);
