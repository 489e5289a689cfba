// What a browser sees of the console, asserted; see `run`.

import assert from "node:assert/strict";
import { readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import net from "node:net";
import puppeteer from "puppeteer-core";

const { BROWSER, IMAGES, FIRST, FIRST_BOOKIE, LARGE, REPAIRING, FULL, HOSTILE, BINARY, LOST_PID } = process.env;
const PATIENCE_MS = 180000;
const TRANSFERRED_MAX = 300 * 1024;
const PICTURE_BYTES_MAX = 150 * 1024;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const browser = await puppeteer.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"] });

/** Asks for entries of a ledger in BookKeeper's second protocol, and takes none. */
function stall(address, ledger, entries) {
  const [host, port] = address.split(":");
  const socket = net.connect({ host, port: Number(port) });
  const frames = Buffer.alloc(24 * entries);
  for (let entry = 0; entry < entries; entry += 1) {
    const at = entry * 24;
    frames.writeUInt32BE(20, at);
    frames.writeUInt32BE((2 << 24) | (2 << 16), at + 4);
    frames.writeBigInt64BE(BigInt(ledger), at + 8);
    frames.writeBigInt64BE(BigInt(entry), at + 16);
  }
  socket.on("error", () => {});
  socket.write(frames);
  return socket;
}

/** A page that fails the test when it breaks its policy, throws, asks anybody else, or sends its token where none is needed. `mayFail`: statuses
 * that it may get. */
async function open(base, view, { width = 1280, height = 860, isMobile = false, theme = "light", mayFail = [], token = null } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => { page.problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("console", (message) => {
    if (message.type() !== "error") return;
    if (/Failed to load resource/.test(message.text()) && mayFail.some((status) => message.text().includes(String(status)))) return;
    page.problems.push(`console: ${message.text()} ${message.location()?.url ?? ""}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(base)) page.problems.push(`asked ${request.url()}`);
    if (request.headers().authorization && !request.url().includes("/api/v1/ledger/read?")) page.problems.push(`token for ${request.url()}`);
  });
  if (token !== null) await page.evaluateOnNewDocument((token) => sessionStorage.setItem("bindery.admin.token", token), token);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  await page.setViewport({ width, height, isMobile, hasTouch: isMobile });
  await page.goto(`${base}/#${view}`, { waitUntil: "load" });
  return page;
}

async function close(page) {
  assert.deepEqual(page.problems, [], page.url());
  await page.browserContext().close();
}

const text = (page, selector) => page.$$eval(selector, (all) => all.map((one) => one.textContent).join("\n"));

/** Waits until the text of what the selector finds matches. */
async function shows(page, selector, pattern, what) {
  const until = Date.now() + PATIENCE_MS;
  let seen = "";
  while (Date.now() < until) {
    seen = await text(page, selector);
    if (pattern.test(seen)) return seen;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  assert.fail(`${what}: ${selector} shows ${JSON.stringify(seen.slice(0, 2000))}, which does not match ${pattern}\n${page.problems.join("\n")}`);
}

/** The number of the tile with this name. */
async function tile(page, name, pattern) {
  const selector = `xpath/.//dl[contains(@class,"tiles")]/div[dt[normalize-space()=${JSON.stringify(name)}]]/dd`;
  await shows(page, selector, pattern, `the tile ${name}`);
}

/** A card by its heading. */
const inCard = (title, rest) => `xpath/.//*[contains(@class,"card")][h3[normalize-space()=${JSON.stringify(title)}]]${rest}`;

async function chart(page, title, pattern = /at most [^0]/) {
  const selector = inCard(title, `//*[@role="img"]`);
  const until = Date.now() + PATIENCE_MS;
  let label = "";
  while (Date.now() < until) {
    label = (await page.$$eval(selector, (all) => all.map((one) => `${one.getAttribute("aria-label")} ${one.querySelectorAll("canvas").length} canvas`))).join();
    if (pattern.test(label) && label.endsWith("1 canvas")) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  assert.fail(`the chart ${title} says ${label}`);
}

async function accessible(page, what) {
  await page.evaluate(`${axe}; undefined`);
  const found = await page.evaluate(async () => (await window.axe.run()).violations
    .map(({ id, impact, nodes }) => ({ id, impact, where: nodes.slice(0, 3).map((node) => node.html.slice(0, 200)) })));
  assert.deepEqual(found, [], `axe, ${what}`);
}

async function fits(page, what) {
  const [wide, room] = await page.evaluate(() => [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]);
  assert.ok(wide <= room, `${what} is ${wide} pixels wide on a screen of ${room}`);
}

async function picture(page, name, isWhole = false) {
  const path = `${IMAGES}/console-${name}.webp`;
  await page.screenshot({ path, type: "webp", quality: 80, fullPage: isWhole });
  const size = statSync(path).size;
  assert.ok(size < PICTURE_BYTES_MAX, `${path} has ${size} bytes`);
}

async function go(page, view) {
  await page.evaluate((hash) => { location.hash = hash; }, view);
  await shows(page, 'nav a[aria-current="page"]', /./, "a view");
}

async function ledgers(page) {
  await shows(page, "#view tbody", new RegExp(`^${HOSTILE}\\D`, "m"), "the list of ledgers");
  await accessible(page, "ledgers");
  await page.type("#ledger", HOSTILE);
  await page.keyboard.press("Enter");
  await shows(page, inCard("Metadata", "//tbody"), /<img src=x onerror="window\.isHacked=1">/, "a property");
  await shows(page, inCard("Metadata", "//tbody"), /<b>key<\/b><script>window\.isHacked=2<\/script>/, "a key");
  await shows(page, inCard("Copies", "//tbody"), /\(this node\).*each entry on 2 of these 3/s, "copies");
  const read = async () => (await page.$(inCard("Entries", `//button[normalize-space()="Read"]`))).click();
  await read();
  await shows(page, inCard("Entries", "//tbody"), /<script>window\.isHacked=3<\/script>/, "an entry as text");
  await picture(page, "ledger-light");
  await page.select(".card select", "json");
  await shows(page, inCard("Entries", "//tbody"), /"name": "<img src=x onerror=window\.isHacked=4>",\s+"count": 7/, "an entry as JSON");
  await shows(page, inCard("Entries", "//tbody"), /not JSON; as text:\s+plain text/, "an entry that is no JSON");
  await page.select(".card select", "hex");
  await shows(page, inCard("Entries", "//tbody"), /000000 {2}3c 73 63 72 69 70 74 3e .*<script>/, "an entry as digits");
  assert.equal(await page.evaluate(() => window.isHacked), undefined);
  assert.equal(await page.$$eval("#view img, #view b, #view script", (all) => all.length), 0, "markup of a ledger in the page");
  await accessible(page, "a ledger");
  await page.$eval("#ledger", (input) => { input.value = ""; });
  await page.type("#ledger", BINARY);
  await page.keyboard.press("Enter");
  await shows(page, inCard("Metadata", "//dl"), /open.*not known before it is closed/s, "an open ledger");
}

const step = (name) => console.log(`--- ${name}`);
const consumer = stall(FIRST_BOOKIE, LARGE, 6000);

try {
  step("the first load is small, and the page asks its own node alone");
  {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    const session = await page.createCDPSession();
    await session.send("Network.enable");
    let bytes = 0;
    session.on("Network.loadingFinished", ({ encodedDataLength }) => { bytes += encodedDataLength; });
    await page.goto(`${FIRST}/`, { waitUntil: "load" });
    await shows(page, "#state", /serving/, "the state");
    await chart(page, "Throughput");
    assert.ok(bytes > 50000 && bytes < TRANSFERRED_MAX, `${bytes} bytes were transferred`);
    const paints = await page.evaluate(() => performance.getEntriesByType("paint").map(({ name, startTime }) => `${name} ${Math.round(startTime)} ms`));
    console.log(`transferred: ${bytes} bytes; ${paints.join(", ")}`);
    // Again: files that have not changed are not sent again.
    let sent = 0;
    session.on("Network.responseReceived", ({ response, type }) => { if (/Script|Stylesheet|Document/.test(type) && response.status === 200 && !response.fromDiskCache) sent += 1; });
    await page.reload({ waitUntil: "load" });
    await chart(page, "Throughput");
    await context.close();
  }

  step("a full disk");
  const full = await open(FULL, "storage", { token: "of an operator" });
  await shows(full, "#state", /^read-only/, "the state");
  await shows(full, "#alarms", /Read-only \(disk_full\)/, "why");
  await shows(full, inCard("Disks", "//tbody"), /FULL/, "the volume");
  await accessible(full, "a full disk");
  await picture(full, "full-disk");
  await close(full);

  step("a lost bookie is repaired");
  const repair = await open(REPAIRING, "cluster", { mayFail: [404] });
  await tile(repair, "Away", /^0/);
  process.kill(Number(LOST_PID), "SIGKILL");
  await tile(repair, "Away", /^1/);
  await shows(repair, inCard("Bookies", "//tbody"), /AWAY/, "the lost bookie");
  await tile(repair, "Ledgers that lack copies", /^[1-9]/);
  await shows(repair, inCard("Missing copies", "//tbody[1]"), /^2[1-9]/m, "ledgers by live copies");
  await tile(repair, "Time left", /^[0-9.]+ (s|min|h)/);
  await chart(repair, "Copied by this node");
  await accessible(repair, "repair");
  await picture(repair, "repair");
  await tile(repair, "Time left", /^nothing to do/);
  await close(repair);

  step("every panel of a node has data");
  const page = await open(FIRST, "overview", { mayFail: [404] });
  await shows(page, "#state", /^serving/, "the state");
  await tile(page, "Adds", /[1-9][0-9,]*\/s/);
  await tile(page, "Reads", /[1-9][0-9,]*\/s/);
  await tile(page, "Connections", /[1-9].*stalled/);
  for (const title of ["Throughput", "Bytes of entries", "Add latency, of the last minute", "Read latency, of the last minute"]) await chart(page, title);
  await accessible(page, "overview");

  step("it is live, and the node remembers");
  const when = inCard("Throughput", `//*[contains(@class,"legend")]/li[last()]`);
  const before = await text(page, when);
  await shows(page, when, new RegExp(`^(?!${before})`), "a newer row");
  await page.reload({ waitUntil: "load" });
  await chart(page, "Throughput");

  step("who is stalled, and what it holds");
  await go(page, "flow");
  await tile(page, "Stalled", /[1-9]/);
  await shows(page, inCard("Who is slow", "//tbody/tr[1]"), /STALLED: took nothing for/, "the stalled consumer");
  await shows(page, inCard("Who is slow", "//tbody/tr[1]"), /outbound [0-9.]+ [KM]iB/, "what it holds");
  await shows(page, inCard("Byte pools", "//tbody"), /write/, "pools");
  await chart(page, "Memory of pools");
  await chart(page, "Connections");
  await accessible(page, "flow");
  await picture(page, "flow-light");

  step("disks, journal, logs, merges and scrub");
  await go(page, "storage");
  await shows(page, inCard("Disks", "//tbody"), /[GT]iB.*(has room|FULL)/s, "volumes");
  await tile(page, "Journal sync, p99", /[0-9.]+ m?s/);
  await tile(page, "Entry logs", /[1-9]/);
  for (const title of ["Journal sync, of the last minute", "Bytes written, by cause", "On disk", "Free space"]) await chart(page, title);
  await shows(page, inCard("Scrub", "//dl"), /Passes[1-9].*entries/s, "scrub");
  await shows(page, inCard("Garbage collection, compaction and merges", "//dl"), /Merges[0-9,]+ of/, "merges");
  await accessible(page, "storage");
  await picture(page, "storage-light");

  step("lag and cost of tiering");
  await go(page, "tier");
  await shows(page, inCard("Tierer", "//dl"), /Storefile:\/\/.*Requests[1-9]/s, "the tierer");
  await tile(page, "Behind", /[1-9].*entries/s);
  await tile(page, "Requests cost so far", /\$/);
  await shows(page, inCard("Tierer", "//tbody"), /upload/, "stages");
  await chart(page, "Tiering lag, in bytes");
  await accessible(page, "tier");
  await picture(page, "tier-light");

  step("bookies and their consoles");
  await go(page, "cluster");
  await tile(page, "Bookies that take writes", /^3/);
  await shows(page, inCard("Bookies", "//tbody"), /this page/, "this node");
  const consoles = await page.$$eval(inCard("Bookies", "//tbody//a"), (links) => links.map((link) => link.href));
  const port = Number(new URL(FIRST).port);
  assert.deepEqual(consoles.sort(), [`http://127.0.0.1:${port + 1}/`, `http://127.0.0.1:${port + 2}/`]);
  await accessible(page, "cluster");

  step("nothing of a ledger becomes markup");
  await go(page, "ledgers");
  await ledgers(page);

  step("the keyboard reaches everything");
  await go(page, "overview");
  await page.reload({ waitUntil: "load" });
  await chart(page, "Throughput");
  await tile(page, "Adds", /[1-9][0-9,]*\/s/);
  await picture(page, "overview-light");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  const reached = new Set();
  for (let at = 0; at < 30; at += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.textContent));
  }
  for (const name of ["range", "theme", "pause", "Overview", "Ledgers"]) assert.ok(reached.has(name), `${name} among ${[...reached].join(", ")}`);
  await (await page.$(inCard("Throughput", `//*[@role="img"]`))).focus();
  const at = await text(page, when);
  await page.keyboard.press("Home");
  await shows(page, when, new RegExp(`^(?!${at}$)`), "the first row");
  await close(page);

  step("dark, and on a phone");
  for (const view of ["overview", "flow", "storage", "tier", "cluster", "ledgers"]) {
    const dark = await open(FIRST, view, { theme: "dark", mayFail: [404] });
    await shows(dark, "#state", /^serving/, "the state");
    assert.equal(await dark.evaluate(() => document.documentElement.dataset.theme), "dark");
    await new Promise((resolve) => setTimeout(resolve, 3000));
    await accessible(dark, `${view}, dark`);
    if (view === "overview") await picture(dark, "overview-dark");
    await close(dark);
    const phone = await open(FIRST, view, { width: 390, height: 844, isMobile: true, mayFail: [404] });
    await shows(phone, "#state", /^serving/, "the state");
    await new Promise((resolve) => setTimeout(resolve, 3000));
    await fits(phone, view);
    await accessible(phone, `${view}, phone`);
    if (view === "overview" || view === "flow") await picture(phone, `${view}-phone`);
    await close(phone);
  }

  step("a node that does not answer is said to be so");
  const gone = await open(FIRST, "overview", { mayFail: ["ERR_INTERNET_DISCONNECTED"] });
  await shows(gone, "#state", /^serving/, "the state");
  await gone.setOfflineMode(true);
  await shows(gone, "#state", /^no answer for .*the node does not answer/, "its silence");
  await gone.setOfflineMode(false);
  await shows(gone, "#state", /^serving/, "that it is back");
  await close(gone);
} finally {
  consumer.destroy();
  await browser.close();
}
