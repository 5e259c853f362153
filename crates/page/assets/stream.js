// Events to state. The connection itself is in `stream-worker.js`.

import { onFederation, onLog, onNode, onRounds, onSummary } from "./state.js";

const HANDLERS = {
  federation: (state, { said, isNew }) => onFederation(state, said, isNew),
  node: (state, { said, at }) => onNode(state, said, at),
  rounds: (state, { said }) => onRounds(state, said),
  summary: (state, { said }) => onSummary(state, said),
  log: (state, { said }) => onLog(state, said),
  connection: (state, { said }) => {
    state.connection = said;
  },
};

// Listens, for as long as the page lives; `changed` is called after each change.
export function listen(state, changed) {
  const worker = new Worker("/assets/stream-worker.js");
  worker.onmessage = ({ data }) => {
    HANDLERS[data.name](state, data);
    state.version += 1;
    changed();
  };
  worker.onerror = () => {
    state.connection = "broken";
    changed();
  };
}
