// Curves of many nodes by round: their mean, the worst tenth, sums. Nothing here knows the page.
//
// Means are weighted by test samples, as `summary.json` has them. The worst tenth is the mean of the worst n/10 nodes, at
// least of one. A round counts once half of the nodes have told about it; else its point would jump.

import { SCORE, ROUND, TEST_SAMPLES } from "./rounds.js";

// Returns the mean of the nodes' newest scores, or null.
export function meanNow(nodes) {
  let [sum, weights] = [0, 0];
  for (const node of nodes) {
    const score = node.rows.newest(SCORE);
    const weight = node.rows.newest(TEST_SAMPLES) || 1;
    if (Number.isNaN(score)) continue;
    sum += score * weight;
    weights += weight;
  }
  return weights > 0 ? sum / weights : null;
}

// Returns the newest round of any node.
export const lastRound = (nodes) => nodes.reduce((last, node) => Math.max(last, node.rows.last), 0);

// Reads each row of many nodes once, however often it is asked. Where the nodes or old rows change, it begins anew.
class Reader {
  constructor(column) {
    this.column = column;
    this.key = null;
  }

  // Calls `begin` where all begins anew, and `take(round, value, weight)` for each row that is new; rounds count from 0.
  read(nodes, { begin, take }) {
    const key = nodes.map((node) => `${node.index} ${node.rows.replaced}`).join();
    const isSame = key === this.key && nodes.every(({ rows }, at) => this.entries[at].rows === rows);
    if (!isSame) {
      this.key = key;
      this.entries = nodes.map(({ rows }) => ({ rows, length: 0 }));
      begin();
    }
    for (const entry of this.entries) {
      const { rows } = entry;
      for (; entry.length < rows.length; entry.length += 1) {
        const value = rows.at(this.column, entry.length);
        const round = rows.at(ROUND, entry.length) - 1;
        if (!Number.isNaN(value) && round >= 0) take(round, value, rows.at(TEST_SAMPLES, entry.length) || 1);
      }
    }
  }
}

// Mean and worst tenth of a column, by round; null where fewer than half of the nodes have told.
export class Spread {
  constructor(column) {
    this.reader = new Reader(column);
  }

  // Brings the curves up to date. The worst are the lowest, or the highest where less is better.
  update(nodes, isLess = false) {
    if (this.isLess !== isLess) Object.assign(this.reader, { key: null });
    this.isLess = isLess;
    const touched = new Set();
    const begin = () => Object.assign(this, { told: [], mean: [], worst: [] });
    this.reader.read(nodes, { begin, take: (round, value, weight) => {
      const told = (this.told[round] ??= { values: [], weights: [] });
      told.values.push(value);
      told.weights.push(weight);
      touched.add(round);
    } });
    const rounds = lastRound(nodes);
    while (this.mean.length < rounds) {
      this.mean.push(null);
      this.worst.push(null);
    }
    for (const round of touched) this.settle(round, nodes.length);
    return { mean: this.mean, worst: this.worst };
  }

  settle(round, n) {
    const { values, weights } = this.told[round];
    if (values.length * 2 < n) return;
    let [sum, total] = [0, 0];
    values.forEach((value, position) => {
      sum += value * weights[position];
      total += weights[position];
    });
    this.mean[round] = sum / total;
    const tenth = Math.max(1, Math.round(values.length / 10));
    const sorted = Float64Array.from(values).sort();
    const worst = this.isLess ? sorted.subarray(-tenth) : sorted.subarray(0, tenth);
    this.worst[round] = worst.reduce((all, value) => all + value, 0) / tenth;
  }
}

// Sum of a column over all nodes, and mean over those who told, by round; null where nobody did.
export class Sums {
  constructor(column) {
    this.reader = new Reader(column);
  }

  // Brings the sums up to date.
  update(nodes) {
    const begin = () => Object.assign(this, { told: [], sums: [] });
    this.reader.read(nodes, { begin, take: (round, value) => {
      this.sums[round] = (this.sums[round] ?? 0) + value;
      this.told[round] = (this.told[round] ?? 0) + 1;
    } });
    const rounds = axis(lastRound(nodes));
    return {
      sums: rounds.map((round) => this.sums[round - 1] ?? null),
      means: rounds.map((round) => (this.told[round - 1] ? this.sums[round - 1] / this.told[round - 1] : null)),
    };
  }
}

// Returns a column of one node by round; null where it is not known.
export function ofNode(node, column) {
  const values = new Array(node.rows.last).fill(null);
  for (let position = 0; position < node.rows.length; position += 1) {
    const value = node.rows.at(column, position);
    const round = node.rows.at(ROUND, position) - 1;
    if (!Number.isNaN(value) && round >= 0) values[round] = value;
  }
  return values;
}

// Returns 1, 2, … as far as there are rounds.
export const axis = (rounds) => Array.from({ length: rounds }, (_, position) => position + 1);
