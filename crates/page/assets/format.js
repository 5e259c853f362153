// Numbers with units, and texts made harmless. Nothing here knows the page.

const DASH = "–";
const NARROW = "\u00a0";

// Controls, marks without width and marks that turn the direction of a text: shown as `\u{202e}`.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]|\p{Cs}/gu;
// More marks on one letter than any language needs; they would cover other lines.
const HEAPED = /(\p{M}{4})\p{M}+/gu;
const ORDINARY = /^[\x20-\x7e]*$/;
const MOST_LETTERS = 4000;

// Returns a text in which everything unseen is spelled out.
export function plain(text) {
  const whole = typeof text === "string" ? text : String(text);
  const short = whole.length > MOST_LETTERS ? `${whole.slice(0, MOST_LETTERS)}…` : whole;
  if (ORDINARY.test(short)) return short;
  return short.replace(HEAPED, "$1").replace(UNSEEN, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const grouped = new Intl.NumberFormat("en");

// Formats a count.
export const count = (value) => (known(value) ? grouped.format(value) : DASH);

// Formats a share of 1 as a percentage.
export const percent = (share) => (known(share) ? `${(share * 100).toFixed(1)}${NARROW}%` : DASH);

// Formats a difference of two shares.
export function points(share) {
  if (!known(share)) return DASH;
  const value = (share * 100).toFixed(1);
  const sign = share > 0 ? "+" : share < 0 ? "−" : "";
  return `${sign}${value.replace("-", "")}${NARROW}points`;
}

// Begins a word with a capital.
export const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

// Formats a plain number.
export const decimal = (value, digits = 2) => (known(value) ? value.toFixed(digits) : DASH);

// Formats a number in a unit of its own, with four digits.
export const significant = (value) => (known(value) ? String(Number(value.toPrecision(4))) : DASH);

// Formats a value of a measure.
export const measured = (measure, value) => (measure.isShare ? percent(value) : significant(value));

// Formats a number without zeros that say nothing.
export const short = (value) => (known(value) ? String(Number(value.toFixed(2))) : DASH);

const RAISED = { 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹", "-": "⁻" };

// Formats a very small number as a power of ten.
export function tiny(value) {
  if (!known(value) || value <= 0) return DASH;
  const [digits, power] = value.toExponential(1).split("e");
  const factor = Number(digits) === 1 ? "" : `${Number(digits)}·`;
  return `${factor}10${[...String(Number(power))].map((digit) => RAISED[digit]).join("")}`;
}

// Formats an amount of data in decimal units.
export function bytes(amount) {
  if (!known(amount)) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = amount;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.5 ? 0 : 1;
  return `${value.toFixed(digits)}${NARROW}${units[unit]}`;
}

// Formats a duration.
export function seconds(value) {
  if (!known(value)) return DASH;
  const whole = Math.round(value);
  if (value < 0.0005) return `0${NARROW}s`;
  if (value < 0.9995) return `${Math.round(value * 1000)}${NARROW}ms`;
  if (value < 9.95) return `${value.toFixed(1)}${NARROW}s`;
  if (whole < 60) return `${whole}${NARROW}s`;
  if (whole < 3600) return pair(whole, 60, "min", "s");
  if (whole < 86400) return pair(Math.round(whole / 60), 60, "h", "min");
  return pair(Math.round(whole / 3600), 24, "d", "h");
}

function pair(value, base, large, small) {
  const rest = value % base;
  const first = `${Math.floor(value / base)}${NARROW}${large}`;
  return rest === 0 ? first : `${first} ${rest}${NARROW}${small}`;
}

const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
let today = { key: "", at: 0 };

// Formats a moment: the time, and the day where it is not today.
export function moment(at) {
  if (!known(at)) return DASH;
  const now = Date.now();
  if (now - today.at > 10000) today = { key: new Date(now).toDateString(), at: now };
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return DASH;
  return date.toDateString() === today.key ? time.format(date) : day.format(date);
}

// Shortens a node's id as the project does: the last eight letters, for all ids begin alike.
export const letters = (id) => (typeof id === "string" ? id.slice(-8) : DASH);

// Joins names as a sentence has them, at most `most` of them.
export function list(names, most = 3) {
  const first = names.slice(0, most);
  if (names.length > most) first.push(`${names.length - most} more`);
  if (first.length < 2) return first.join("");
  return `${first.slice(0, -1).join(", ")} and ${first[first.length - 1]}`;
}

// Returns a count with its noun.
export const of = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
