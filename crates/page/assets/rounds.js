// The rounds of one node: a table by columns that grows, in the order of rounds.
//
// Two hundred nodes with a thousand rounds each are 200,000 rows. As columns of numbers they take 25 MB and are quick to
// add up; what is not known is NaN.

// Columns, as the event `rounds` has them. Those from `EXPERTS` on may be missing there.
export const ROUND = 0, STARTED = 1, SCORE = 2, BEFORE = 3, LOSS = 4, TRAIN_LOSS = 5, ROUND_SECONDS = 6,
  TRAIN_SECONDS = 7, SENT = 8, RECEIVED = 9, SOURCES = 10, RSS = 11, TEST_SAMPLES = 12, EXPERTS = 13, GLOBAL = 14,
  MERGE = 15, EVALUATE = 16, SAVE = 17, PUBLISH = 18;

const N_COLUMNS = 13;
const MOST_COLUMNS = 19;
const FIRST_CAPACITY = 64;

// The rounds of one node.
export class Rounds {
  constructor() {
    this.length = 0;
    this.capacity = FIRST_CAPACITY;
    this.columns = Array.from({ length: N_COLUMNS }, () => new Float64Array(FIRST_CAPACITY));
    // How often a row that was there changed.
    this.replaced = 0;
  }

  // Takes a row in. One of a round that is there replaces it.
  add(row) {
    const round = row[ROUND];
    let position = this.length;
    while (position > 0 && this.columns[ROUND][position - 1] > round) position -= 1;
    const isThere = position > 0 && this.columns[ROUND][position - 1] === round;
    if (isThere) position -= 1;
    if (isThere || position < this.length) this.replaced += 1;
    if (!isThere) this.makeRoom(position);
    const n = Math.min(row.length, MOST_COLUMNS);
    while (this.columns.length < n) this.columns.push(new Float64Array(this.capacity).fill(NaN));
    for (let column = 0; column < this.columns.length; column += 1) {
      this.columns[column][position] = typeof row[column] === "number" ? row[column] : NaN;
    }
  }

  makeRoom(position) {
    if (this.length === this.capacity) {
      this.capacity *= 2;
      this.columns = this.columns.map((old) => {
        const column = new Float64Array(this.capacity);
        column.set(old);
        return column;
      });
    }
    if (position < this.length) {
      for (const column of this.columns) column.copyWithin(position + 1, position, this.length);
    }
    this.length += 1;
  }

  // Returns a number, or NaN.
  at(column, position) {
    if (column >= this.columns.length || position < 0 || position >= this.length) return NaN;
    return this.columns[column][position];
  }

  // Returns the newest known number of a column, or NaN.
  newest(column) {
    for (let position = this.length - 1; position >= 0; position -= 1) {
      const value = this.at(column, position);
      if (!Number.isNaN(value)) return value;
    }
    return NaN;
  }

  // Returns the newest round, 0 before any.
  get last() {
    return this.length === 0 ? 0 : this.at(ROUND, this.length - 1);
  }
}
