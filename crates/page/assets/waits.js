// Who waits for whom: in words for one node, and added up over all nodes.

import { count, list, seconds } from "./format.js";
import { nameOf } from "./state.js";
import { CAUSES } from "./words.js";

// A wait that is shorter is nothing to speak of.
const SHORT_SECONDS = 1;

// Returns how long a wait takes by now: it goes on between two events.
export function waitedSeconds(node, wait, now) {
  const since = node.state === "running" ? Math.max(0, (now - node.heard) / 1000) : 0;
  return wait.seconds + since;
}

// Says what a node waits for, since when, what ends the wait and what can be done.
export function waitWords(state, node, wait, now) {
  const whom = (wait.whom ?? []).map((id) => {
    const known = (wait.known ?? []).find((one) => one.node === id);
    return nameOf(state, id) + (known ? ` (${known.text})` : "");
  });
  const from = whom.length > 0 ? ` from ${list(whom)}` : "";
  const waited = waitedSeconds(node, wait, now);
  const elapsed = waited - wait.seconds;
  const ends = wait.ends_in_seconds ?? null;
  return {
    what: wait.cause === "own-work" ? `Busy for ${seconds(waited)} with ${wait.what}.` : `Waits for ${wait.what}${from}, for ${seconds(waited)} now.`,
    why: CAUSES[wait.cause] ?? "",
    ends: ends === null ? "" : `It goes on without in ${seconds(Math.max(0, ends - elapsed))} at most.`,
    remedy: wait.remedy ? `What you can do: ${wait.remedy}` : "",
  };
}

// Returns those who are waited for, with how many wait and the longest wait, longest first.
export function owed(state, nodes, now) {
  const all = new Map();
  for (const node of nodes) {
    if (node.state !== "running") continue;
    for (const wait of node.status?.waiting_for ?? []) {
      const waited = waitedSeconds(node, wait, now);
      if (waited < SHORT_SECONDS) continue;
      for (const id of wait.whom ?? []) add(all, id, { node, wait, waited });
    }
  }
  const found = [...all.entries()].map(([id, { by, what, longest }]) => ({
    id, name: nameOf(state, id), by: count(by.size), what: list([...what], 2), longest,
  }));
  return found.sort((a, b) => b.longest - a.longest);
}

function add(all, id, { node, wait, waited }) {
  const entry = all.get(id) ?? { by: new Set(), what: new Set(), longest: 0 };
  entry.by.add(node.index);
  entry.what.add(wait.what);
  entry.longest = Math.max(entry.longest, waited);
  all.set(id, entry);
}
