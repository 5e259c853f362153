// An imitated server for check-page: gives the page's files and the events of a case, as the real one does.
//
// It holds to the same rules: a ticket that is good once, a cookie, a strict content security policy, one stream of events.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml" };
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const COOKIE = "fednode=imitation";
const FIRST_LINES = 500;

/** Serves a case from a folder of assets. `port` 0 takes any. */
export class Imitation {
  constructor(assets, made) {
    Object.assign(this, { assets, made, beat: 0, streams: new Set(), connections: 0 });
    this.ticket = "0123456789abcdef";
  }

  async start(port = 0) {
    this.server = createServer((request, response) => this.answer(request, response).catch(() => response.writeHead(500).end()));
    await new Promise((done) => this.server.listen(port, "127.0.0.1", done));
    this.port = this.server.address().port;
    this.timer = setInterval(() => this.tick(), 100);
    return `http://127.0.0.1:${this.port}/?ticket=${this.ticket}`;
  }

  /** Ends as if the process were killed. */
  async kill() {
    clearInterval(this.timer);
    this.server.closeAllConnections();
    this.streams.clear();
    await new Promise((done) => this.server.close(done));
  }

  goodbye() {
    for (const stream of this.streams) this.send(stream, "goodbye", "{}");
    for (const stream of this.streams) stream.end();
    this.streams.clear();
  }

  async answer(request, response) {
    const url = new URL(request.url, "http://127.0.0.1");
    const base = { "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer" };
    if (url.pathname === "/" && url.searchParams.has("ticket")) {
      const isGood = url.searchParams.get("ticket") === this.ticket;
      return response.writeHead(isGood ? 303 : 403, isGood ? { ...base, Location: "/", "Set-Cookie": `${COOKIE}; HttpOnly; SameSite=Strict; Path=/` } : base).end();
    }
    if (!(request.headers.cookie ?? "").includes(COOKIE)) return response.writeHead(403, base).end("no cookie");
    if (url.pathname === "/events") return this.open(response, base);
    const name = url.pathname === "/" ? "index.html" : normalize(url.pathname.replace(/^\/assets\//, ""));
    try {
      const body = await readFile(join(this.assets, name));
      return response.writeHead(200, { ...base, "Content-Type": TYPES[extname(name)] ?? "application/octet-stream" }).end(body);
    } catch {
      return response.writeHead(404, base).end();
    }
  }

  open(response, base) {
    this.connections += 1;
    response.writeHead(200, { ...base, "Content-Type": "text/event-stream" });
    this.send(response, "federation", JSON.stringify(this.made.federation()));
    if (this.made.hasSummary) this.send(response, "summary", JSON.stringify(this.made.summary()));
    for (const node of this.made.watched) {
      this.send(response, "node", this.made.node(node, this.beat));
      if (node.rows.length > 0) this.send(response, "rounds", JSON.stringify(this.made.rowsEvent(node, node.rows)));
      node.lines = 0;
      this.send(response, "log", JSON.stringify(this.made.logEvent(node, node.rows.length > 0 ? Math.min(FIRST_LINES, 3 * node.rows.length) : 1)));
    }
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
  }

  // Each node speaks once a second; a tenth of them in each tick. A round takes four seconds.
  tick() {
    if (this.streams.size === 0 || this.made.defaultState !== "running") return;
    this.beat += 1;
    const second = Math.floor(this.beat / 10);
    for (const node of this.made.watched) {
      if (node.index % 10 !== this.beat % 10) continue;
      const events = [["node", this.made.node(node, second)], ["log", JSON.stringify(this.made.logEvent(node, 1))]];
      const round = (second + node.index) % 4 === 0 ? this.made.advance(node) : null;
      if (round) events.push(["rounds", JSON.stringify(round)]);
      for (const stream of this.streams) for (const [name, data] of events) this.send(stream, name, data);
    }
  }

  send(stream, name, data) {
    stream.write(`event: ${name}\ndata: ${data}\n\n`);
  }
}
