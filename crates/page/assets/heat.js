// A heat map: one picture, whose cells are darker the larger the number. A table beside it says the same.

import { colour } from "./charts.js";
import { el, setStyle, setText, show } from "./dom.js";

const LABEL = 84;
// The last column's label leans out to the right.
const LEANING = 40;
const LARGEST_CELL = 52;
const CELL_WITH_LABEL = 13;
const CELL_WITH_NUMBER = 36;
const dark = matchMedia("(prefers-color-scheme: dark)");

// A map of { rows, columns, values }: names, and numbers from 0 to 1 row by row, NaN for none.
export class Heat {
  constructor(describe) {
    this.describe = describe;
    this.map = null;
    this.canvas = el("canvas", { role: "img", "aria-label": "Map of who uses whose experts. The table below says the same." });
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    this.host = el("div", { class: "heat" }, this.canvas);
    this.root = el("div", {}, this.host, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerleave", () => setText(this.readout, ""));
    dark.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  // Shows other numbers, if they changed.
  set(map) {
    if (this.map && isSame(this.map, map)) return;
    this.map = map;
    this.draw();
  }

  draw() {
    const width = this.root.clientWidth;
    if (!this.map || width === 0) return;
    const { rows, columns } = this.map;
    show(this.host, rows.length > 0 && columns.length > 0);
    if (rows.length === 0 || columns.length === 0) return;
    const full = Math.min(LARGEST_CELL, (width - LABEL - LEANING) / columns.length);
    const hasLabels = full >= CELL_WITH_LABEL;
    this.margin = hasLabels ? LABEL : 0;
    this.cell = Math.min(LARGEST_CELL, (width - this.margin - (hasLabels ? LEANING : 0)) / columns.length);
    const size = [this.margin + this.cell * columns.length + (hasLabels ? LEANING : 0), this.margin + this.cell * rows.length];
    const scale = Math.min(devicePixelRatio || 1, 2);
    [this.canvas.width, this.canvas.height] = size.map((length) => Math.ceil(length * scale));
    setStyle(this.canvas, "width", `${size[0]}px`);
    setStyle(this.canvas, "height", `${size[1]}px`);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    this.drawCells(context);
    if (hasLabels) this.drawLabels(context);
    if (this.cell >= CELL_WITH_NUMBER) this.drawNumbers(context);
  }

  // One pixel a cell, then scaled: forty thousand rectangles would take longer than a frame.
  drawCells(context) {
    const { rows, columns, values } = this.map;
    const small = new OffscreenCanvas(columns.length, rows.length);
    const image = new ImageData(columns.length, rows.length);
    this.most = values.reduce((most, value) => (value > most ? value : most), 1e-9);
    const [from, to, none] = ["heat-from", "heat-to", "surface"].map((name) => parse(colour(name)));
    values.forEach((value, place) => {
      const share = Math.max(0, Math.min(1, value / this.most));
      const mix = Number.isNaN(value) ? none : from.map((start, at) => start + (to[at] - start) * Math.sqrt(share));
      image.data.set([mix[0], mix[1], mix[2], 255], place * 4);
    });
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, this.margin, this.margin, this.cell * columns.length, this.cell * rows.length);
    context.strokeStyle = colour("line");
    context.strokeRect(this.margin + 0.5, this.margin + 0.5, this.cell * columns.length - 1, this.cell * rows.length - 1);
    if (this.cell < CELL_WITH_LABEL) return;
    context.strokeStyle = colour("surface");
    for (let at = 1; at < columns.length; at += 1) stroke(context, this.margin + at * this.cell, this.margin, 0, this.cell * rows.length);
    for (let at = 1; at < rows.length; at += 1) stroke(context, this.margin, this.margin + at * this.cell, this.cell * columns.length, 0);
  }

  drawLabels(context) {
    const { rows, columns } = this.map;
    context.fillStyle = colour("text");
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((row, at) => context.fillText(cut(this.describe.row(row)), this.margin - 8, this.margin + (at + 0.5) * this.cell));
    context.textAlign = "left";
    columns.forEach((column, at) => {
      context.save();
      context.translate(this.margin + (at + 0.5) * this.cell, this.margin - 8);
      context.rotate(-Math.PI / 3);
      context.fillText(cut(this.describe.column(column)), 0, 0);
      context.restore();
    });
  }

  drawNumbers(context) {
    const { columns, values } = this.map;
    context.textAlign = "center";
    values.forEach((value, place) => {
      if (Number.isNaN(value)) return;
      const [column, row] = [place % columns.length, Math.floor(place / columns.length)];
      context.fillStyle = colour(Math.sqrt(Math.max(0, value) / this.most) > 0.55 ? "heat-over" : "text");
      context.fillText(this.describe.cell(value), this.margin + (column + 0.5) * this.cell, this.margin + (row + 0.5) * this.cell);
    });
  }

  onMove(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.margin) / this.cell);
    const row = Math.floor((event.clientY - box.top - this.margin) / this.cell);
    const { rows, columns, values } = this.map;
    const isInside = column >= 0 && row >= 0 && column < columns.length && row < rows.length;
    const value = isInside ? values[row * columns.length + column] : NaN;
    if (!isInside) return setText(this.readout, "");
    const words = Number.isNaN(value) ? "nothing" : this.describe.number(value);
    return setText(this.readout, `${this.describe.row(rows[row])} uses of ${this.describe.column(columns[column])}: ${words}`);
  }
}

const cut = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);

function stroke(context, x, y, width, height) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + width, y + height);
  context.stroke();
}

const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function isSame(one, other) {
  if (one.values.length !== other.values.length || one.rows.join() !== other.rows.join() || one.columns.join() !== other.columns.join()) return false;
  return one.values.every((value, place) => Object.is(value, other.values[place]));
}
