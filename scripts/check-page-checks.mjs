// What is checked of the page: each function opens it, measures and reports.

import { join } from "node:path";

export const VIEWS = ["now", "worth", "who", "traffic", "privacy", "members", "log"];
const LOAD_MILLISECONDS = 200;
const DRAWN_MILLISECONDS = 1000;
const LOADS = 5;
const FRAMES_A_SECOND = 50;
const MEASURED_SECONDS = 3;
const NARROW = 360;
const INTERACTIVE = "a[href], button, input, select, summary, [tabindex='0']";

const medianOf = (values) => values.slice().sort((one, other) => one - other)[Math.floor(values.length / 2)];
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Opens the page in a context of its own, and gathers whatever goes wrong on it. */
async function open(browser, url, { width = 1280, height = 900, scheme = "light" } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const problems = [];
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.on("console", (message) => message.type() === "error" && problems.push(`console: ${message.text()}`));
  page.on("pageerror", (problem) => problems.push(`error: ${problem.message}`));
  page.on("dialog", async (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  await page.evaluateOnNewDocument(() => {
    window.violations = [];
    // When the first node is seen: the load event comes before the page has asked for anything to show.
    const seen = () => document.querySelector(".node h3")?.textContent ? (window.drawnAt = performance.now()) : requestAnimationFrame(seen);
    requestAnimationFrame(seen);
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(url, { waitUntil: "load" });
  await page.waitForFunction(() => !document.getElementById("line").textContent.startsWith("Connecting"), { timeout: 20000 });
  return { page, problems, close: () => context.close() };
}

/** Goes to a view, and waits until it is drawn. */
async function go(page, view) {
  await page.evaluate((hash) => { location.hash = hash; }, view);
  await page.waitForSelector(`#view-${view.split("/")[0]}:not([hidden])`, { timeout: 20000 });
  await pause(500);
}

/** The load event must come soon, also where nothing is in the cache. The median of some counts: other work disturbs one. */
export async function load(name, url, { browser, report, isChosen }, drawnMost = DRAWN_MILLISECONDS) {
  if (!isChosen(`${name}: load`)) return;
  const times = [];
  const drawn = [];
  for (let n = 0; n < LOADS; n += 1) {
    const { page, close } = await open(browser, url);
    times.push(await page.evaluate(() => performance.getEntriesByType("navigation")[0].loadEventEnd));
    await page.waitForFunction(() => window.drawnAt !== undefined, { timeout: 20000 });
    drawn.push(await page.evaluate(() => window.drawnAt));
    await close();
  }
  const median = medianOf(times);
  const all = times.map((time) => time.toFixed(0)).join(", ");
  report(`${name}: load`, median > 0 && median < LOAD_MILLISECONDS, `${median.toFixed(0)} ms (below ${LOAD_MILLISECONDS}; ${all})`);
  report(`${name}: load until drawn`, medianOf(drawn) < drawnMost, `first nodes after ${medianOf(drawn).toFixed(0)} ms (below ${drawnMost})`);
}

/** Frames in three seconds in each view, while events arrive. */
export async function frames(name, url, { browser, report, isChosen }) {
  if (!isChosen(`${name}: frames`)) return;
  const { page, close } = await open(browser, url);
  await page.waitForFunction(() => document.querySelectorAll(".node").length > 200, { timeout: 60000 });
  await pause(5000);
  for (const view of [...VIEWS, "worth/7", "who/7"]) {
    await go(page, view);
    await pause(1500);
    const measured = await page.evaluate((seconds) => new Promise((done) => {
      const start = performance.now();
      let [n, longest, before] = [0, 0, start];
      const frame = (now) => {
        n += 1;
        longest = Math.max(longest, now - before);
        before = now;
        if (performance.now() - start < seconds * 1000) requestAnimationFrame(frame);
        else done({ rate: n / ((performance.now() - start) / 1000), longest });
      };
      requestAnimationFrame(frame);
    }), MEASURED_SECONDS);
    report(`${name}: frames in ${view}`, measured.rate >= FRAMES_A_SECOND,
      `${measured.rate.toFixed(1)} a second (${FRAMES_A_SECOND} at least), longest pause ${measured.longest.toFixed(0)} ms`);
  }
  await close();
}

/** axe must find nothing, in each view, light and dark. */
export async function axe(name, url, { browser, axe: source, report, isChosen }) {
  if (!isChosen(`${name}: axe`)) return;
  for (const scheme of ["light", "dark"]) {
    const { page, close } = await open(browser, url, { scheme });
    const found = [];
    await page.evaluate(source);
    for (const view of VIEWS) {
      await go(page, view);
      await page.evaluate(() => document.querySelectorAll("details").forEach((one) => { one.open = one.querySelectorAll("tr").length < 300; }));
      const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      found.push(...violations.map((one) => `${view}: ${one.id} (${one.nodes.length}: ${one.nodes[0].html.slice(0, 120)})`));
    }
    report(`${name}: axe, ${scheme}`, found.length === 0, found.length === 0 ? `0 violations in ${VIEWS.length} views` : found.join("; "));
    await close();
  }
}

/** Everything interactive is reached by the tabulator key and shows it; arrows move between tabs. */
export async function keyboard(name, url, { browser, report, isChosen }) {
  if (!isChosen(`${name}: keyboard`)) return;
  const { page, close } = await open(browser, url);
  let reached = 0;
  const missed = [];
  const unseen = [];
  for (const view of VIEWS) {
    await go(page, view);
    const expected = await page.evaluate(markInteractive, INTERACTIVE);
    const visited = new Set();
    for (let n = 0; n < 2 * expected.length + 20; n += 1) {
      await page.keyboard.press("Tab");
      const focused = await page.evaluate(lookAtFocus);
      if (focused.key !== null) visited.add(focused.key);
      if (focused.key !== null && !focused.isSeen) unseen.push(`${view}: ${focused.what}`);
    }
    missed.push(...expected.filter(({ key }) => !visited.has(key)).map(({ what }) => `${view}: ${what}`));
    reached += visited.size;
  }
  report(`${name}: keyboard reaches all`, missed.length === 0 && reached > 0, missed.length === 0 ? `${reached} elements in ${VIEWS.length} views` : missed.join("; "));
  report(`${name}: keyboard focus is seen`, unseen.length === 0, unseen.length === 0 ? "each has an outline" : [...new Set(unseen)].join("; "));
  await go(page, "now");
  await page.evaluate(() => document.querySelector("nav a[aria-current]").focus());
  await page.keyboard.press("ArrowRight");
  await pause(300);
  const hash = await page.evaluate(() => `${location.hash} ${document.querySelector("nav a[aria-current]").textContent}`);
  report(`${name}: keyboard arrows`, hash === "#worth Worth", `from Now to ${hash}`);
  await close();
}

function markInteractive(selector) {
  const seen = new Set();
  const kept = [...document.querySelectorAll(selector)].filter((element) => {
    const isShown = element.checkVisibility() && !element.disabled;
    // One of a group of radio buttons has the focus for all.
    const group = element.type === "radio" ? `radio ${element.name}` : null;
    if (!isShown || (group && !element.checked) || seen.has(group)) return false;
    if (group) seen.add(group);
    return true;
  });
  return kept.map((element, key) => {
    element.dataset.key = String(key);
    return { key: String(key), what: `${element.tagName.toLowerCase()} ${element.textContent.slice(0, 30)}` };
  });
}

function lookAtFocus() {
  const element = document.activeElement;
  if (!element || element === document.body) return { key: null };
  const style = getComputedStyle(element);
  const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return { key: element.dataset.key ?? null, isSeen, what: `${element.tagName} ${element.textContent.slice(0, 30)}` };
}

/** No view is wider than a small telephone. */
export async function narrow(name, url, { browser, report, isChosen }) {
  if (!isChosen(`${name}: narrow`)) return;
  const { page, close } = await open(browser, url, { width: NARROW, height: 740 });
  const wide = [];
  for (const view of VIEWS) {
    await go(page, view);
    const width = await page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth));
    if (width > NARROW) wide.push(`${view} ${width} px`);
  }
  report(`${name}: narrow`, wide.length === 0, wide.length === 0 ? `${NARROW} px hold all views` : wide.join(", "));
  await close();
}

/** No error, no violation of the policy, no dialog, while all views are seen. */
export async function quiet(name, url, { browser, report, isChosen }) {
  if (!isChosen(`${name}: quiet`)) return;
  const { page, problems, close } = await open(browser, url);
  for (const view of VIEWS) await go(page, view);
  problems.push(...(await page.evaluate(() => window.violations)).map((one) => `policy: ${one}`));
  report(`${name}: quiet`, problems.length === 0, problems.length === 0 ? "no error, no violation, no dialog" : problems.slice(0, 5).join("; "));
  await close();
}

/** Hostile texts are shown, never become elements, and turn nothing around. */
export async function hostile(name, url, { browser, report, isChosen }) {
  if (!isChosen(`${name}: hostile`)) return;
  const { page, problems, close } = await open(browser, url);
  let shown = 0;
  const found = [];
  for (const view of VIEWS) {
    await go(page, view);
    const told = await page.evaluate(() => {
      const foreign = [...document.querySelectorAll("img, script, svg[onload], iframe, object, embed, [onerror], [onload], [onmouseover], a[href^='javascript']")]
        .filter((element) => !["/assets/icon.svg", "/assets/app.js"].includes(element.getAttribute("src")));
      const texts = [document.title];
      const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ALL);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        if (node.nodeType === Node.TEXT_NODE) texts.push(node.data);
        for (const attribute of node.attributes ?? []) texts.push(attribute.value);
      }
      // eslint-disable-next-line no-control-regex
      const turned = texts.filter((text) => /[\u0000-\u0008\u000b-\u001f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/.test(text));
      const all = texts.join("\n");
      return { foreign: foreign.map((element) => element.outerHTML.slice(0, 80)), turned: turned.map((text) => JSON.stringify(text.slice(0, 60))),
        shown: all.includes("<img src=x onerror=alert(1)>") && all.includes("\\u{202e}") };
    });
    found.push(...told.foreign.map((one) => `${view}: element ${one}`), ...told.turned.map((one) => `${view}: text ${one}`));
    if (told.shown) shown += 1;
  }
  found.push(...problems.filter((one) => one.startsWith("dialog")));
  if (shown < VIEWS.length) found.push(`hostile texts are shown in ${shown} views only`);
  report(`${name}: hostile`, found.length === 0, found.length === 0 ? `shown as text in ${shown} views, no element, no dialog` : found.slice(0, 5).join("; "));
  await close();
}

const banner = (page) => page.evaluate(() => {
  const element = document.querySelector("[role=status]");
  return element.checkVisibility() ? element.textContent : "";
});

/** A lost connection is said, and the page connects again by itself. */
export async function lost(name, url, { browser, report, isChosen }, server) {
  if (!isChosen(`${name}: lost`)) return;
  const { page, close } = await open(browser, url);
  await server.kill();
  await pause(1500);
  const said = await banner(page);
  const nodes = await page.evaluate(() => document.querySelectorAll(".node").length);
  await server.start(server.port);
  const start = performance.now();
  while ((await banner(page)) !== "" && performance.now() - start < 15000) await pause(100);
  const after = await banner(page);
  const isGood = /lost/.test(said) && nodes > 0 && after === "";
  report(`${name}: lost connection`, isGood, `“${said}”, ${nodes} nodes still shown, back after ${((performance.now() - start) / 1000).toFixed(1)} s`);
  await close();
}

/** After `goodbye` the page says so, and does not connect again. */
export async function goodbye(name, url, { browser, report, isChosen }, server) {
  if (!isChosen(`${name}: goodbye`)) return;
  const { page, close } = await open(browser, url);
  const before = server.connections;
  server.goodbye();
  await pause(6000);
  const said = await banner(page);
  const again = server.connections - before;
  report(`${name}: goodbye`, /ended/.test(said) && again === 0, `“${said}”, ${again} new connections in 6 s`);
  await close();
}

/** The real page, whose ticket is good once: one context for all checks. */
export async function whole(name, url, { browser, axe: source, report, isChosen }, dashboard) {
  const { page, problems, close } = await open(browser, url);
  const time = await page.evaluate(() => performance.getEntriesByType("navigation")[0].loadEventEnd);
  if (isChosen(`${name}: load`)) {
    report(`${name}: load`, time > 0 && time < LOAD_MILLISECONDS, `${time.toFixed(0)} ms (below ${LOAD_MILLISECONDS})`);
  }
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.evaluate(source);
    const found = [];
    for (const view of VIEWS) {
      await go(page, view);
      const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      found.push(...violations.map((one) => `${view}: ${one.id} (${one.nodes[0].html.slice(0, 120)})`));
    }
    report(`${name}: axe, ${scheme}`, found.length === 0, found.length === 0 ? `0 violations in ${VIEWS.length} views` : found.join("; "));
  }
  await go(page, "who/0");
  const madeOf = await page.evaluate(() => document.body.innerText.match(/It serves [^.]*\./)?.[0] ?? "");
  report(`${name}: what a model is made of`, /\d+ % own model/.test(madeOf), madeOf || "is not said");
  await page.setViewport({ width: NARROW, height: 740 });
  const wide = [];
  for (const view of VIEWS) {
    await go(page, view);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    if (width > NARROW) wide.push(`${view} ${width} px`);
  }
  report(`${name}: narrow`, wide.length === 0, wide.length === 0 ? `${NARROW} px hold all views` : wide.join(", "));
  problems.push(...(await page.evaluate(() => window.violations)).map((one) => `policy: ${one}`));
  report(`${name}: quiet`, problems.length === 0, problems.length === 0 ? "no error, no violation, no dialog" : problems.slice(0, 5).join("; "));
  if (dashboard) {
    dashboard.process.kill("SIGTERM");
    await pause(2000);
    const said = await banner(page);
    report(`${name}: goodbye`, /ended/.test(said), `“${said}”`);
  }
  await close();
}

/** Pictures of each view: light, dark and narrow. */
export async function pictures(name, next, { browser }, folder) {
  for (const [look, options] of Object.entries({ light: {}, dark: { scheme: "dark" }, narrow: { width: NARROW, height: 740 } })) {
    const { page, close } = await open(browser, await next(), options);
    await pause(2500);
    for (const view of VIEWS) {
      await go(page, view);
      await pause(1200);
      await page.screenshot({ path: join(folder, `${name}-${view}-${look}.png`) });
    }
    await close();
  }
}
