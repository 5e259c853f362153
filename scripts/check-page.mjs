// Checks the page in a real browser; `scripts/check-page` says how and brings what is needed.
//
//     check-page.mjs          arguments, the browser, the real swarm, the report
//     check-page-checks.mjs   what is checked
//     check-page-server.mjs   the imitated server       check-page-data.mjs   what it says

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import * as checks from "./check-page-checks.mjs";
import { Case, HOSTILE } from "./check-page-data.mjs";
import { Imitation } from "./check-page-server.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const MODULES = process.env.CHECK_PAGE_MODULES ?? exitWith("start scripts/check-page: it brings what this needs");
const LINK = /http:\/\/\S*\?ticket=[0-9a-zA-Z]+/g;
const LINK_SECONDS = 20;
const SWARM_SECONDS = 120;
// The imitated server makes 30 MB of events at once before it sends any.
const BIG_DRAWN_MILLISECONDS = 4000;

const { values: flags, positionals: words } = parseArgs({ allowPositionals: true, options: {
  url: { type: "string" }, bin: { type: "string" }, assets: { type: "string" }, screenshots: { type: "string" }, scratch: { type: "string" },
  untimed: { type: "boolean" } } });
let failures = 0;

/** Prints what came of a check. */
function report(name, isGood, measured) {
  if (!isGood) failures += 1;
  console.log(`${isGood ? "ok  " : "FAIL"} ${name}: ${measured}`);
}

const isTimed = (title) => title.endsWith(": load") || title.endsWith(": frames");
const isChosen = (title) => (words.length === 0 || words.some((word) => title.includes(word))) && !(flags.untimed && isTimed(title));

// What is checked in each group.
const CHECKS = { small: ["load", "axe", "keyboard", "narrow", "quiet"], big: ["load", "frames", "hostile", "axe", "narrow", "quiet"],
  odd: ["axe", "narrow", "quiet"], ends: ["lost", "goodbye"], real: ["all"] };

function titlesOf(group) {
  const names = group === "odd" ? Object.keys(ODD) : [group];
  return names.flatMap((name) => CHECKS[group].map((check) => `${name}: ${check}`));
}

function exitWith(problem) {
  console.error(problem);
  process.exit(2);
}

async function main() {
  const require = createRequire(join(MODULES, "x.js"));
  const { default: puppeteer } = await import(pathToFileURL(require.resolve("puppeteer-core")).href);
  const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
  const browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", headless: true,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars"] });
  if (flags.screenshots) await mkdir(flags.screenshots, { recursive: true });
  const tools = { browser, axe, report, isChosen, serve };
  try {
    for (const [name, run] of [["small", small], ["big", big], ["odd", odd], ["ends", ends], ["real", real]]) {
      if (titlesOf(name).some(isChosen)) await run(tools).catch((problem) => report(name, false, problem.stack ?? problem));
    }
    if (flags.screenshots) await screenshots(tools);
  } finally {
    await browser.close();
  }
  process.exitCode = failures > 0 ? 1 : 0;
}

async function serve(options) {
  const assets = resolve(flags.assets ?? join(ROOT, "crates/page/assets"));
  const server = new Imitation(assets, new Case(options));
  return { server, url: await server.start() };
}

// Three nodes at work: what everybody sees first.
async function small(tools) {
  const { server, url } = await serve({ problem: "the daemon (process 7) does not answer at 127.0.0.1:4000: connection refused" });
  await checks.load("small", url, tools);
  await checks.axe("small", url, tools);
  await checks.keyboard("small", url, tools);
  await checks.narrow("small", url, tools);
  await checks.quiet("small", url, tools);
  await server.kill();
}

// Two hundred nodes, a thousand rounds, hostile names, and events all the time.
async function big(tools) {
  const options = { nodes: 200, rounds: 1000, total: 1200, hostile: true, title: `${HOSTILE[0]}${HOSTILE[2]}`, summary: true };
  const { server, url } = await serve(options);
  await checks.load("big", url, tools, BIG_DRAWN_MILLISECONDS);
  await checks.frames("big", url, tools);
  await checks.hostile("big", url, tools, server);
  await checks.axe("big", url, tools);
  await checks.narrow("big", url, tools);
  await checks.quiet("big", url, tools);
  await server.kill();
}

const ODD = {
  "no rounds": { rounds: 0, kind: "swarm" },
  "no nodes": { nodes: 0, rounds: 0, aggregator: false, kind: "simulation", total: 0 },
  "records only": { rounds: 12, state: "stopped", summary: true },
  "one node": { nodes: 1, strangers: 7, aggregator: false, kind: "node", mode: "dp" },
  aggregator: { nodes: 0, aggregator: true, kind: "aggregator" },
};

// Cases in which much is missing: each view must say so, and break nothing.
async function odd(tools) {
  for (const [name, options] of Object.entries(ODD)) {
    const { server, url } = await serve(options);
    await checks.axe(name, url, tools);
    await checks.narrow(name, url, tools);
    await checks.quiet(name, url, tools);
    await server.kill();
  }
}

async function ends(tools) {
  const { server, url } = await serve({});
  await checks.lost("ends", url, tools, server);
  await checks.goodbye("ends", url, tools, server);
  await server.kill();
}

// The real server, with a swarm of its own where no link is given.
async function real(tools) {
  const target = process.env.CARGO_TARGET_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "fednode/target");
  const program = join(flags.bin ?? join(target, "release"), "fednode");
  if (!flags.url && !existsSync(program)) return console.log(`skip real: there is no ${program}; build it, or name --bin or --url`);
  const dashboard = flags.url ? null : await startReal(program);
  try {
    if (flags.screenshots && dashboard) await checks.pictures("real", dashboard.next, tools, flags.screenshots);
    await checks.whole("real", flags.url ?? await dashboard.next(), tools, dashboard);
  } finally {
    dashboard?.process.kill("SIGKILL");
  }
}

async function startReal(program) {
  const folder = join(flags.scratch ?? ".", "swarm");
  await ended(spawn(program, ["swarm", "--nodes", "3", "--rounds", "3", "--out", folder], { stdio: ["ignore", "ignore", "inherit"] }));
  const dashboard = spawn(program, ["dashboard", folder], { stdio: ["ignore", "pipe", "inherit"] });
  let said = "";
  dashboard.stdout.on("data", (data) => { said += data; });
  // A link works once; the next one is printed after that.
  const used = new Set();
  const next = async () => {
    for (let n = 0; n < LINK_SECONDS * 10; n += 1) {
      const link = (said.match(LINK) ?? []).find((one) => !used.has(one));
      if (link) {
        used.add(link);
        return link;
      }
      if (dashboard.exitCode !== null) break;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`fednode dashboard printed no new link: ${said}`);
  };
  return { process: dashboard, next };
}

function ended(child) {
  return new Promise((done, failed) => {
    const timer = setTimeout(() => child.kill("SIGKILL"), SWARM_SECONDS * 1000);
    child.on("error", failed);
    child.on("exit", (code) => {
      clearTimeout(timer);
      if (code === 0) done();
      else failed(new Error(`fednode swarm ended with ${code}`));
    });
  });
}

async function screenshots(tools) {
  const all = { swarm: { problem: "the daemon (process 7) does not answer at 127.0.0.1:4000: connection refused", nodes: 5, rounds: 22, total: 30 },
    finished: { rounds: 12, state: "stopped", summary: true }, "one-node": { nodes: 1, strangers: 7, aggregator: false, kind: "node", mode: "dp" },
    large: { nodes: 200, rounds: 1000, total: 1200, hostile: true, title: HOSTILE[0], summary: true } };
  for (const [name, options] of Object.entries(all).filter(([name]) => isChosen(name))) {
    const { server, url } = await serve(options);
    await checks.pictures(name, () => url, tools, flags.screenshots);
    await server.kill();
  }
}

await main();
