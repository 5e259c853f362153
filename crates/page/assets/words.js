// Words for what the daemon says in one: phases, causes of waits, ways to a peer, purposes of bytes, parts of a round.

// Measures by which joining is judged: a word, whether it is a share, and whether less is better.
export const MEASURES = {
  accuracy: { word: "accuracy", isShare: true, isLess: false },
  "balanced-accuracy": { word: "balanced accuracy", isShare: true, isLess: false },
  "macro-f1": { word: "macro-F1", isShare: true, isLess: false },
  auroc: { word: "AUROC", isShare: true, isLess: false },
  auprc: { word: "AUPRC", isShare: true, isLess: false },
  "log-loss": { word: "log loss", isShare: false, isLess: true },
  brier: { word: "Brier score", isShare: false, isLess: true },
  "calibration-error": { word: "calibration error", isShare: true, isLess: true },
  mae: { word: "MAE", isShare: false, isLess: true },
  rmse: { word: "RMSE", isShare: false, isLess: true },
  r2: { word: "R²", isShare: true, isLess: false },
};

// What a served model is made of.
export const COMPONENTS = {
  "own-model": "own model",
  pool: "pool of private modules",
  "own-statistics": "own statistics",
  "peers-statistics": "peers' statistics",
  slots: "peers' statistics with slots",
  "noised-statistics": "noised statistics",
  "common-statistics": "statistics of all nodes",
  "group-statistics": "statistics of groups",
};

// Phases of a node, with what each means.
export const PHASES = {
  joining: ["Joining", "It looks for the others, and for the newest round."],
  training: ["Training", "It learns from its own data."],
  exchanging: ["Exchanging", "It gets experts and the mean from the others."],
  merging: ["Merging", "It mixes what it got into its own model."],
  pooling: ["Pooling", "It tries the private modules of the others."],
  serving: ["Serving", "All rounds are done. It gives its parts to others who still need them."],
};

// What an aggregator does in any phase.
export const ADDING = ["Adding up", "It collects what the nodes send, and adds it up."];

// Why a node waits.
export const CAUSES = {
  "own-work": "It works itself, and waits for nobody.",
  "first-peer": "It has not reached anybody yet.",
  members: "Too few members are here to begin.",
  closing: "Somebody whose turn it is must close the round: add up what was sent.",
  quorum: "Too few updates have come in to close the round.",
  evidence: "It checks a closed round against updates that it has not got yet.",
  mean: "The mean of the closed round is on its way.",
  parts: "Parts of other members are on their way.",
  updates: "Others still train.",
  experts: "Experts of others are on their way.",
  proxies: "Descriptions of the others' experts are on their way.",
  modules: "Private modules of others are on their way.",
};

// Ways to a member: the class of the line, a word, and what it means.
export const ROUTES = {
  tcp: { line: "direct", word: "directly (tcp)", rank: 0 },
  quic: { line: "direct", word: "directly (quic)", rank: 0 },
  relay: { line: "relayed", word: "relayed", rank: 1 },
  others: { line: "others", word: "through others", rank: 2 },
  none: { line: "none", word: "not at all", rank: 3 },
};

// Lines of the graph, with their legend.
export const LINES = {
  direct: ["direct", "The two nodes are connected."],
  relayed: ["relayed", "A third member passes everything on, and cannot read it."],
  others: ["through others", "No connection. Other members pass on what is said, and store what is shared."],
  none: ["none", "Neither a connection nor a way through others."],
};

// Purposes of bytes.
export const PURPOSES = [
  ["aggregator", "To and from aggregators", "Parts of models that an aggregator adds up."],
  ["peer_to_peer", "Among nodes", "Experts and other parts of models."],
  ["gossip", "Announcements", "Signed notes on who has what, passed on by everybody."],
  ["control", "Greetings", "Hellos, catching up, and addresses of others."],
];

// Parts of a round: key, word, whether the node works or waits, and what it means.
export const PARTS = [
  { key: "train", word: "training", isWait: false, hint: "Learning from the own data." },
  { key: "publish", word: "publish", isWait: false, hint: "Writing the parts that others may fetch." },
  { key: "experts", word: "waiting for experts", isWait: true, hint: "From the own update to the last expert of others." },
  { key: "global", word: "waiting for the mean", isWait: true, hint: "From then on, until the round's mean is there." },
  { key: "merge", word: "merge", isWait: false, hint: "Mixing what came into the own model." },
  { key: "evaluate", word: "evaluate", isWait: false, hint: "Testing the model. It may run during the waits." },
  { key: "save", word: "save", isWait: false, hint: "Copying the model for checkpoints." },
  { key: "rest", word: "the rest", isWait: false, hint: "What is not told apart." },
];
