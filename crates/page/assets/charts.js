// Line charts: uPlot with a legend of words, a readout under the pointer, and a table for those who do not see lines.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { el, keyed, setAttribute, setRows, setText, setStyle, show, table } from "./dom.js";
import { Bundle } from "./bundle.js";

const HEIGHT = 270;
const MOST_ROWS = 40;
// Only those who look at a chart need its style.
document.head.append(el("link", { rel: "stylesheet", href: "/assets/vendor/uplot/uPlot.min.css" }));
const dark = matchMedia("(prefers-color-scheme: dark)");
const reading = getComputedStyle(document.documentElement);
// Returns a colour of the style sheet.
export const colour = (name) => reading.getPropertyValue(`--${name}`).trim();

// A chart of lines by round. `lines` are { name, colour, width, dash }, of which `colour` is a name of the style sheet.
export class LineChart {
  constructor({ title, lines, format, thin = null, floor = null }) {
    Object.assign(this, { title, lines, format, thin, floor });
    this.data = null;
    this.plot = null;
    this.host = el("div", { class: "plot", "aria-hidden": "true" });
    this.legend = el("ul", { class: "legend" });
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    this.nothing = el("p", { class: "nothing", text: "Nothing to draw yet: it begins with the first round." });
    this.table = table(`${title}, by round`, ["Round", ...lines.map((line) => ({ text: line.name, number: true }))]);
    this.summary = el("summary", { text: `Show “${title}” as a table` });
    this.details = el("details", {}, this.summary, this.table.scroll);
    this.caption = el("figcaption", { text: title });
    this.root = el("figure", { class: "chart" }, this.caption, this.legend, this.host, this.nothing,
      this.readout, this.details);
    this.bundle = thin ? new Bundle(() => this.plot?.redraw(false, false)) : null;
    this.details.addEventListener("toggle", () => this.fillTable());
    dark.addEventListener("change", () => this.rebuild());
    new ResizeObserver(() => this.onResize()).observe(this.host);
    this.fillLegend();
  }

  // Gives the chart another title.
  rename(title) {
    this.title = title;
    setText(this.caption, title);
    setText(this.summary, `Show “${title}” as a table`);
    setText(this.table.title, `${title}, by round`);
    setAttribute(this.table.scroll, "aria-label", `${title}, by round`);
  }

  fillLegend() {
    const all = this.thin ? [...this.lines, { name: this.thin, colour: "thin", width: 1 }] : this.lines;
    const create = (line) => el("li", {}, el("span", { class: `swatch line-${line.dash ? "dashed" : "solid"} of-${line.colour}` }),
      el("span", { text: line.name }));
    keyed(this.legend, all, (line) => line.name, create, () => {});
  }

  // Shows other data: x, then one array a line. `range` is of x; `thinLines` are behind, as [xs, ys] pairs.
  set(xs, ys, { range, thinLines = [] }) {
    this.data = [xs, ...ys];
    this.range = range;
    this.thinLines = thinLines;
    const isEmpty = !ys.some((line) => line.some((value) => value !== null)) && thinLines.every((line) => line.length === 0);
    show(this.nothing, isEmpty);
    show(this.host, !isEmpty);
    show(this.legend, !isEmpty);
    show(this.details, !isEmpty);
    if (isEmpty) return;
    if (this.plot) this.plot.setData(this.data);
    else this.build();
    if (this.details.open) this.fillTable();
  }

  build() {
    const width = this.host.clientWidth;
    if (width === 0) return;
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const series = this.lines.map((line) => ({
      label: line.name, stroke: colour(line.colour), width: line.width ?? 2, dash: line.dash ?? undefined, spanGaps: true,
      points: { show: this.data[0].length < 30, size: 6, fill: colour("surface") },
    }));
    this.plot = new uPlot({
      width, height: HEIGHT, series: [{}, ...series], legend: { show: false },
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, least, most) => this.heights(least, most) } },
      axes: [{ ...axis, size: 26, label: "round", labelSize: 20, labelGap: 0, labelFont: "12px system-ui, sans-serif", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...axis, size: 64, values: (_, marks) => marks.map((mark) => this.format(mark).replace(".0", "")) }],
      cursor: { drag: { x: false, y: false }, y: false },
      hooks: { setCursor: [(plot) => this.onCursor(plot)], drawAxes: [(plot) => this.drawThin(plot)] },
    }, this.data, this.host);
  }

  // Returns the range of y; it grows in steps, so that axes and thin lines rest.
  heights(least, most) {
    let [low, high] = [least ?? 0, most ?? 1];
    for (const [, ys] of this.thinLines) {
      for (let position = 0; position < ys.length; position += 1) {
        if (ys[position] < low) low = ys[position];
        if (ys[position] > high) high = ys[position];
      }
    }
    const step = 10 ** Math.floor(Math.log10(Math.max(high - low, Math.abs(high) * 0.05, 1e-6)));
    const bottom = this.floor ?? Math.floor(low / step - 0.001) * step;
    return [bottom, Math.max(Math.ceil(high / step + 0.001) * step, bottom + step)];
  }

  drawThin(plot) {
    this.bundle?.draw(plot, this.thinLines, colour("thin"));
  }

  onCursor(plot) {
    const { idx } = plot.cursor;
    if (idx === null || idx === undefined) return setText(this.readout, "");
    const told = this.lines.map((line, position) => `${line.name} ${this.format(plot.data[position + 1][idx])}`);
    return setText(this.readout, `Round ${plot.data[0][idx]}: ${told.join(", ")}`);
  }

  onResize() {
    const width = this.host.clientWidth;
    if (width === 0 || !this.data) return;
    if (!this.plot) this.build();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.build();
  }

  // Fills the table, if it is open: at most so many rounds, evenly, and the last one.
  fillTable() {
    if (!this.details.open || !this.data) return;
    const [xs, ...ys] = this.data;
    const known = xs.map((_, position) => position).filter((position) => ys.some((line) => line[position] !== null && line[position] !== undefined));
    const step = Math.max(1, Math.ceil(known.length / MOST_ROWS));
    const kept = known.filter((_, place) => place % step === 0 || place === known.length - 1);
    setText(this.table.title, step === 1 ? `${this.title}, by round` : `${this.title}, every ${step} rounds`);
    setRows(this.table, kept.map((position) => ({
      key: xs[position], cells: [String(xs[position]), ...ys.map((line) => this.format(line[position]))],
    })));
  }
}

// Shows a chart or hides it.
export function showChart(chart, isShown) {
  show(chart.root, isShown);
  setStyle(chart.host, "min-height", `${HEIGHT}px`);
}
