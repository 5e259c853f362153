// Many thin lines behind a chart, one a node. Two hundred lines of a thousand rounds take longer than a frame, so a worker
// draws them into a picture, and the chart shows the newest picture that is done.

const SHORTEST_PAUSE = 1500;
const POINTS_A_PIXEL = 0.5;

// The picture of many lines.
export class Bundle {
  constructor(done) {
    this.done = done;
    this.picture = null;
    this.drawn = "";
    this.asked = "";
    this.at = 0;
    this.worker = null;
  }

  // Puts the picture into a chart that is being drawn, and asks for another one where it is old.
  draw(plot, lines, colour) {
    const { left, top, width, height } = plot.bbox;
    const place = [width, height, plot.scales.x.min, plot.scales.x.max, plot.scales.y.min, plot.scales.y.max, colour].join(" ");
    const points = lines.reduce((sum, line) => sum + line[0].length, 0);
    const key = `${place} ${lines.length} ${points}`;
    if (lines.length > 0 && key !== this.asked) this.ask(plot, lines, { key, place, colour });
    if (this.picture && this.drawn === place && lines.length > 0) plot.ctx.drawImage(this.picture, left, top);
  }

  ask(plot, lines, { key, place, colour }) {
    const now = performance.now();
    const isNew = !this.asked.startsWith(place);
    if (this.isBusy || (!isNew && now - this.at < SHORTEST_PAUSE)) return;
    this.worker ??= this.start();
    if (!this.worker) return;
    this.isBusy = true;
    this.asked = key;
    this.at = now;
    const { width, height } = plot.bbox;
    const packed = pack(plot, lines, width, height);
    this.worker.postMessage({ place, width, height, colour, ...packed }, [packed.points.buffer]);
  }

  start() {
    try {
      const worker = new Worker("/assets/bundle-worker.js", { type: "module" });
      worker.onmessage = ({ data }) => {
        this.picture?.close();
        this.picture = data.picture;
        this.drawn = data.place;
        this.isBusy = false;
        this.done();
      };
      return worker;
    } catch {
      // Without workers the thin lines are missing; mean and worst tenth are not.
      return null;
    }
  }
}

// Turns lines into points of the picture, and leaves out those that nobody could tell apart.
function pack(plot, lines, width, height) {
  const { x, y } = plot.scales;
  const step = Math.max(1, Math.floor(Math.max(...lines.map((line) => line[0].length)) / (width * POINTS_A_PIXEL)));
  const points = new Float32Array(lines.reduce((sum, line) => sum + 2 * (Math.ceil(line[0].length / step) + 1), 0));
  const ends = [];
  let at = 0;
  for (const [xs, ys] of lines) {
    for (let position = 0; position < xs.length; position += 1) {
      if (position % step !== 0 && position !== xs.length - 1) continue;
      points[at] = ((xs[position] - x.min) / (x.max - x.min)) * width;
      points[at + 1] = height - ((ys[position] - y.min) / (y.max - y.min)) * height;
      at += 2;
    }
    ends.push(at);
  }
  return { points, ends };
}
