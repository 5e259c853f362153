// The header: what this is, whether it runs, and one line that says how things are. And the banner for a lost connection.

import { setAttribute, setText, show } from "./dom.js";
import { list, measured, of } from "./format.js";
import { meanNow } from "./curves.js";
import { roundsInAll, scoreOf, trainers } from "./state.js";
import { PHASES } from "./words.js";

const KINDS = { node: "one node", swarm: "swarm", aggregator: "aggregator", simulation: "simulation" };
const BANNERS = {
  lost: "The connection to fednode is lost. The page shows what was last known, and connects again by itself.",
  refused: "This link is no longer valid. Run “fednode dashboard” again, and open the new link that it prints.",
  broken: "This browser cannot run the page: it needs workers. Use a newer one.",
  ended: "The dashboard has ended. The page shows what was last known. Run “fednode dashboard” again to go on.",
};

// Makes the header.
export function makeHeader() {
  const part = (id) => document.getElementById(id);
  const [title, line, kind, mark, banner, folder, version] =
    ["title", "line", "kind", "state", "banner", "folder", "version"].map(part);
  const update = (state) => {
    setText(title, state.title);
    setText(document.querySelector("title"), state.title === "fednode" ? "fednode" : `${state.title} – fednode`);
    setText(line, lineOf(state));
    setText(kind, KINDS[state.kind] ?? state.kind ?? "");
    show(kind, state.kind !== null);
    const whole = stateOf(state);
    setText(mark, whole.text);
    setAttribute(mark, "class", `chip state ${whole.name}`);
    show(mark, state.started !== null);
    const problem = BANNERS[state.connection] ?? state.problems.join(" ");
    setText(banner, problem);
    setAttribute(banner, "class", problem ? "banner shown" : "banner");
    setText(folder, state.folder ? `Folder ${state.folder}` : "");
    setText(version, state.software ? `fednode ${state.software}` : "");
  };
  return { update };
}

// Returns the state of all nodes in one word, with the class of its mark.
function stateOf(state) {
  const { nodes } = state;
  const running = nodes.filter((node) => node.state === "running").length;
  const unreachable = nodes.filter((node) => node.state === "unreachable").length;
  if (unreachable > 0) {
    return { name: "unreachable", text: nodes.length === 1 ? "unreachable" : `${unreachable} of ${nodes.length} unreachable` };
  }
  if (running === 0) return { name: "stopped", text: "stopped" };
  return { name: "running", text: running === nodes.length ? "running" : `${running} of ${nodes.length} running` };
}

function lineOf(state) {
  if (state.started === null) return "Connecting to fednode…";
  const training = trainers(state.nodes);
  if (state.nodes.length > 0 && training.length === 0) return "It adds up what the nodes send. It trains nothing itself.";
  if (training.length === 0) return "No nodes yet.";
  const parts = [of(training.length, "node"), roundLine(state, training), ...phaseLine(training)];
  const score = meanNow(training);
  if (score !== null) parts.push(`${scoreOf(state).word} ${measured(scoreOf(state), score)}`);
  return `${parts.filter(Boolean).join(" · ")}`;
}

function roundLine(state, nodes) {
  const rounds = nodes.map((node) => node.status?.round ?? node.rows.last);
  const [least, most] = [Math.min(...rounds), Math.max(...rounds)];
  if (most === 0) return "no rounds yet";
  const total = roundsInAll(state, nodes[0]);
  const end = total ? ` of ${total}` : "";
  return least === most ? `round ${most}${end}` : `rounds ${least} to ${most}${end}`;
}

function phaseLine(nodes) {
  const phases = new Map();
  for (const node of nodes) {
    if (node.state !== "running" || !node.status) continue;
    const phase = node.status.finished ? "done" : (PHASES[node.status.phase]?.[0] ?? node.status.phase).toLowerCase();
    phases.set(phase, (phases.get(phase) ?? 0) + 1);
  }
  if (phases.size === 0) return [];
  if (nodes.length === 1) return [phases.keys().next().value];
  return [list([...phases].map(([phase, n]) => `${n} ${phase}`), 4)];
}
