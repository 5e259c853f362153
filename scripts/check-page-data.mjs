// Data of an imitated server for check-page: what each event says, for several cases. The same seed makes the same data.
//
// Names and notes of the case `big` are hostile: they try to become markup, to end scripts and to turn the direction of texts.

const LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const STARTED = 1795659418462;
export const HOSTILE = [
  "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\u202egnp.exe\u202c", "\" onmouseover=\"alert(3)", "a\u0000b\u0007c\u200bd\ufeff",
  "<svg/onload=alert(4)>", "javascript:alert(5)", "{{constructor.constructor('alert(6)')()}}", "\u2066left\u2069 \u061c", `Z${"\u0335\u0336\u0337\u0338".repeat(40)}algo`,
];

function random(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** A case: so many nodes with so many rounds of so many, and what is odd about it. */
export class Case {
  constructor({ kind = "swarm", title = "digits demo", nodes = 3, rounds = 8, total = 12, state = "running", hostile = false, summary = false,
    mode = "open", aggregator = true, peers = true, problem = null, strangers = 0 }) {
    Object.assign(this, { kind, title, total, hostile, mode, problem, hasPeers: peers, hasSummary: summary, defaultState: state });
    this.draw = random(7);
    const isAggregator = (index) => aggregator && index === nodes;
    this.nodes = Array.from({ length: nodes + (aggregator ? 1 : 0) + strangers }, (_, index) => ({
      index, id: this.newId(), role: isAggregator(index) ? "aggregator" : "node", skill: 0.55 + 0.4 * this.draw(), rounds: isAggregator(index) ? 0 : rounds,
      name: hostile && index < HOSTILE.length ? HOSTILE[index] : isAggregator(index) ? "fedboot" : `node ${index + 1}`,
    }));
    this.nodes.forEach((node) => {
      node.rows = Array.from({ length: node.rounds }, (_, at) => this.row(node, at + 1));
      node.peers = this.peersOf(node);
    });
    // Others take part whose folders are elsewhere: they are seen as peers only.
    this.watched = this.nodes.slice(0, this.nodes.length - strangers);
    if (problem) this.nodes[1].problem = problem;
  }

  newId() {
    return `12D3KooW${Array.from({ length: 44 }, () => LETTERS[Math.floor(this.draw() * LETTERS.length)]).join("")}`;
  }

  stateOf(node) {
    return node.problem ? "unreachable" : this.defaultState;
  }

  federation() {
    const nodes = this.watched.map(({ index, name, role }) => ({ index, name, role }));
    return { started: STARTED, kind: this.kind, title: this.title, folder: "/srv/fednode/digits", version: "0.1.0", nodes };
  }

  row(node, round) {
    const accuracy = node.skill * (1 - Math.exp(-round / (this.total / 5))) + 0.03 * this.draw();
    const isWhole = round % 10 === 0 || this.total < 50;
    const train = 2 + node.skill + 0.4 * this.draw();
    const sent = 250000 + Math.floor(60000 * this.draw());
    return [round, STARTED + round * 4000, isWhole ? accuracy : null, isWhole ? accuracy - 0.02 - 0.02 * this.draw() : null, isWhole ? 1.2 - accuracy : null, 1.1 - accuracy,
      train + 1.1, train, sent, sent - Math.floor(20000 * this.draw()), 2, 61000000, 100 + node.index];
  }

  record(node) {
    const row = node.rows.at(-1);
    if (!row) return null;
    const others = this.nodes.filter((other) => other.role === "node" && other !== node);
    const near = others.slice().sort((a, b) => Math.abs(a.skill - node.skill) - Math.abs(b.skill - node.skill)).slice(0, 20);
    const purposes = (wire) => ({ aggregator: Math.floor(wire * 0.3), peer_to_peer: Math.floor(wire * 0.55), gossip: Math.floor(wire * 0.08), control: Math.floor(wire * 0.02), wire });
    return {
      round: row[0], node_id: node.id, started_at: row[1], train_loss: row[5], n_samples: 400, train_seconds: row[7], round_seconds: row[6],
      waited_seconds: { experts: 0.35, global: 0.2, merge: 0.15, evaluate: 0.2, save: 0.05, publish: 0.04 }, accuracy: row[2], loss: row[4], test_samples: row[12],
      n_sources_used: near.length, mixed: near.map((other, place) => ({ node: other.id, similarity: 1 - Math.abs(other.skill - node.skill), weight: 0.6 / near.length * (1.4 - 0.8 * (place / near.length)) })),
      bytes_sent: purposes(row[8]), bytes_received: purposes(row[9]), lacks: null, useless: null, composition: { shares: [{ component: "peers-statistics", weight: 0.65 }, { component: "own-model", weight: 0.35 }], left_out: ["slots"], trust: null }, closed_by: null, members: this.nodes.length,
    };
  }

  peersOf(node) {
    if (!this.hasPeers) return [];
    const routes = ["tcp", "tcp", "quic", "tcp", "relay", "tcp", "others", "tcp", "tcp", "quic", "tcp", "tcp", "none"];
    return this.nodes.filter((other) => other !== node).map((other) => {
      const route = routes[(Math.min(node.index, other.index) * 3 + Math.max(node.index, other.index) * 5) % routes.length];
      const isConnected = route !== "others" && route !== "none";
      return {
        node_id: other.id, role: other.role, route, relay: route === "relay" ? this.nodes.at(-1).id : null, why: isConnected ? null : this.hostile ? HOSTILE[0] : "no answer in time",
        addresses: isConnected ? ["/ip4/10.0.0.7/tcp/4001"] : [], connected_seconds: isConnected ? 512.5 : 0, rtt_milliseconds: isConnected ? 0.4 + 40 * this.draw() : null,
        software: this.hostile && other.index === 3 ? HOSTILE[1] : "fednode 0.1.0", holds: 4, score: other.index === 2 ? 1.5 : 0,
      };
    });
  }

  status(node, beat) {
    const round = (node.rows.at(-1)?.[0] ?? 0) + (node.rows.length < this.total ? 1 : 0);
    const isDone = node.role === "node" && node.rows.length >= this.total;
    const phase = isDone ? "serving" : node.role === "aggregator" ? "exchanging" : ["training", "exchanging", "merging"][(node.index + Math.floor(beat / 4)) % 3];
    const other = this.nodes[(node.index + 1) % this.nodes.length];
    const wait = phase !== "exchanging" ? { what: phase === "training" ? "the trainer" : "the merge", whom: [], seconds: 2.5, cause: "own-work", known: [], ends_in_seconds: null, remedy: null }
      : { what: "experts", whom: [other.id], seconds: 12 + (beat % 9), cause: "experts", known: [{ node: other.id, text: this.hostile ? HOSTILE[0] : "it still trains" }], ends_in_seconds: 48 - (beat % 9),
        remedy: this.hostile ? HOSTILE[2] : "look at its log, or lower round.grace_seconds" };
    const bytes = { aggregator: 2100000 + beat, peer_to_peer: 8300000 + 100 * beat, gossip: 700000, control: 40000, wire: 11400000 + 120 * beat };
    return {
      node_id: node.id, role: node.role, federation: "9174ca24".repeat(8), name: this.title, algorithm: "fedmoe-da", phase, round, rounds: this.total, closed_round: round - 1,
      waiting_for: isDone ? [] : [wait], training: phase === "training" ? { epoch: 1 + (beat % 2), epochs: 2, batch: 1 + ((beat * 7 + node.index) % 37), batches: 37, loss: 0.41 } : null,
      last_record: null, peers: node.peers.length, traffic: { sent: bytes, received: bytes },
      trainer: node.role === "node" ? { device: "cpu", model: "cnn", n_parameters: 211627, train_samples: 366, validation_samples: 41, test_samples: 136, classes: [0, 1], partition_hash: "" } : null,
      uptime_seconds: 500 + beat, version: "0.1.0", listeners: [], notes: [], finished: isDone, finished_evaluation: null, rss_bytes: 61000000, peak_rss_bytes: 62000000, blob_bytes: 1000, disk_free_bytes: 1e12,
      state_folder: "/srv/fednode/digits",
    };
  }

  /** The event `node` as text; peers are the bulk of it, and made once. */
  node(node, beat) {
    const state = this.stateOf(node);
    const isOpen = this.mode === "open";
    const releases = node.role === "aggregator" ? [] : [{ what: this.hostile ? HOSTILE[5] : "whatever the federation's algorithm shares", at: STARTED, epsilon: isOpen ? null : 4 }];
    const rest = {
      index: node.index, state, problem: node.problem ?? null, status: state === "running" ? this.status(node, beat) : null, experts: this.experts(node),
      privacy: node.role === "aggregator" ? null : { mode: this.mode, epsilon: isOpen ? null : 4, delta: 1e-5, budget_epsilon: isOpen ? null : 10, releases }, card: null,
    };
    node.peersText ??= JSON.stringify(node.peers);
    const peers = state === "running" ? node.peersText : "[]";
    return `${JSON.stringify(rest).slice(0, -1)},"peers":${peers}}`;
  }

  experts(node) {
    if (this.nodes.length > 20 || node.role !== "node" || this.defaultState !== "running" || node.rows.length === 0) return null;
    const others = this.nodes.filter((other) => other.role === "node" && other !== node);
    const rows = [0, 1, 2, 3].map((slot) => {
      const sources = others.map((other, place) => ({ expert: { owner: other.id, slot: (slot + place) % 4 }, own: false, similarity: 1 - Math.abs(other.skill - node.skill), weight: 0.5 / others.length + 0.03 * (slot - 1.5) * (place % 2 ? 1 : -1), held_from: node.rows.length }));
      return { slot, sources: [{ expert: { owner: node.id, slot }, own: true, similarity: 1, weight: 1 - sources.reduce((sum, one) => sum + one.weight, 0), held_from: node.rows.length }, ...sources] };
    });
    return { planned_in: node.rows.length, rows };
  }

  rowsEvent(node, rows) {
    return { index: node.index, reset: false, rows, last: this.record(node) };
  }

  /** One more round, where there is one. */
  advance(node) {
    if (node.role !== "node" || node.rows.length >= this.total) return null;
    const row = this.row(node, node.rows.length + 1);
    node.rows.push(row);
    return this.rowsEvent(node, [row]);
  }

  logEvent(node, n) {
    const line = (at) => {
      const isTrouble = (node.index + at) % 17 === 5;
      const text = this.hostile ? `${HOSTILE[at % HOSTILE.length]} round ${at}` : isTrouble ? `round ${at}: node 3 does not answer; its experts are left out` : `round ${at} is closed by 4 members; 2 foreign experts are mixed in`;
      return { at: STARTED + at * 4000 + node.index, text, is_trouble: isTrouble };
    };
    node.lines ??= 0;
    const lines = Array.from({ length: n }, (_, place) => line(node.lines + place + 1));
    node.lines += n;
    return { index: node.index, lines };
  }

  summary() {
    const nodes = this.watched.filter((node) => node.role === "node");
    const told = nodes.map((node) => ({ shard: node.index + 1, node_id: node.id, test_samples: 100 + node.index, served: node.skill, alone: node.skill - 0.06 + 0.08 * this.draw() }));
    const mean = (key) => told.reduce((sum, one) => sum + one[key], 0) / told.length;
    const worst = told.reduce((least, one) => (one.served < least.served ? one : least));
    const difference = mean("served") - mean("alone");
    return { algorithm: "fedmoe-da", nodes: nodes.length, rounds: this.total, privacy: { mode: this.mode }, served: mean("served"), alone: mean("alone"), difference,
      interval: [difference - 0.012, difference + 0.015], worst_node: worst, per_node: told };
  }
}
