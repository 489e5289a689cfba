// Begins the page: views by the part of the address behind #, one refresh at a time, alarms above all views.

import { attempt } from "./api.js";
import { Past } from "./charts.js";
import { duration, h, say } from "./dom.js";
import { flow, overview } from "./node.js";
import { storage, tiering } from "./storage.js";
import { cluster } from "./cluster.js";
import { ledgers } from "./ledgers.js";

const PERIOD_MS = 2000;
/** The node looks at its numbers each five seconds; asking more often brings nothing. */
const PAST_PERIOD_MS = 5000;
const STALE_MS = 8000;

/** Views by their part of the address, with the parts of a process of which each needs one. */
const VIEWS = [
  ["overview", overview, ["bookie"]], ["flow", flow, ["bookie"]], ["storage", storage, ["bookie"]],
  ["tier", tiering, ["bookie", "tier"]], ["cluster", cluster, ["bookie", "repair"]], ["ledgers", ledgers, ["bookie"]],
];

const past = new Past();
const page = Object.fromEntries(["node", "state", "range", "theme", "pause", "views", "alarms", "view", "version"].map((id) => [id, document.getElementById(id)]));
let view = null;
let [isPaused, pastAt, answeredAt] = [false, 0, Date.now()];

function remember(name, value) { localStorage.setItem(`bindery.${name}`, value); }
function remembered(name, otherwise) { return localStorage.getItem(`bindery.${name}`) ?? otherwise; }

function paint() {
  const wish = page.theme.value;
  const isDark = wish === "dark" || (wish === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  for (const chart of view?.charts ?? []) chart.repaint();
  draw();
}

function draw() {
  for (const chart of view?.charts ?? []) chart.draw(past);
}

const offered = () => VIEWS.filter(([, , parts]) => past.node === null || parts.some((part) => past.node.parts.includes(part)));

function show(isMoved) {
  const views = offered();
  const name = location.hash.slice(1);
  const [key, make] = views.find(([key]) => key === name) ?? views[0];
  for (const chart of view?.charts ?? []) chart.end();
  view = make(past);
  view.key = key;
  page.views.replaceChildren(...views.map(([other, make]) => h("a", { href: `#${other}`, "aria-current": other === key ? "page" : null }, titles[other])));
  page.view.replaceChildren(h("h2", { tabindex: "-1", id: "heading" }, view.title), view.element);
  document.title = `${view.title}, ${past.node?.bookie ?? "Bindery"}`;
  if (isMoved) document.getElementById("heading").focus();
  draw();
  view.begin?.();
}

const titles = { overview: "Overview", flow: "Memory and peers", storage: "Storage", tier: "Tiering", cluster: "Cluster", ledgers: "Ledgers" };

function pill(text, kind) {
  say(page.state, text);
  page.state.className = `pill ${kind}`;
}

/** What an operator has to know first, whatever the view. */
function judge(state) {
  const lines = [];
  if (state.failed) lines.push(["bad", `A write or sync failed, and no adds are taken: ${state.failed}`]);
  for (const [cause, why] of Object.entries(state.readOnlyBecause ?? {})) lines.push(["warn", `Read-only (${cause}): ${why}`]);
  for (const why of state.directoriesFailed ?? []) lines.push(["bad", `A ledger directory failed: ${why}`]);
  for (const alarm of state.alarms ?? []) lines.push(["warn", alarm]);
  if (state.journalSync === false) lines.push(["warn", "The journal is not synced: acknowledged entries may be lost in a power cut"]);
  const text = lines.map(([, line]) => line).join("\n");
  if (page.alarms.dataset.shown !== text) {
    page.alarms.dataset.shown = text;
    page.alarms.hidden = lines.length === 0;
    page.alarms.replaceChildren(...lines.map(([kind, line]) => h("p", { class: `note ${kind}` }, line)));
  }
  if (state.shuttingDown) pill("stopping", "warn");
  else if (state.failed) pill("failed", "bad");
  else if (!state.running) pill("not serving", "bad");
  else if (state.readOnly) pill("read-only", "warn");
  else pill(lines.length > 0 ? "serving, with alarms" : "serving", lines.length > 0 ? "warn" : "good");
}

const statePath = () => (past.node === null || past.node.parts.includes("bookie") ? "api/v1/bookie/state" : `api/v1/${past.node.parts[0] === "tier" ? "tier" : "autorecovery"}/state`);

async function remembering() {
  if (Date.now() - pastAt < PAST_PERIOD_MS) return;
  const first = past.node === null;
  try {
    await past.refresh();
    pastAt = Date.now();
  } catch { return; }
  if (first) {
    say(page.node, past.node.bookie ?? location.host);
    say(page.version, `Version ${past.node.version}.`);
    show(false);
  }
  draw();
}

async function refresh() {
  await remembering();
  const [{ body: state, problem }] = await Promise.all([attempt(statePath()), view.refresh()]);
  if (state) {
    answeredAt = Date.now();
    judge(state);
  }
  const silentMs = Date.now() - answeredAt;
  const isStale = silentMs > STALE_MS;
  document.body.classList.toggle("stale", isStale);
  if (isStale) pill(`no answer for ${duration(silentMs / 1000)}: ${problem?.message ?? ""}`, "bad");
}

async function run() {
  for (;;) {
    if (!isPaused && !document.hidden) {
      try { await refresh(); } catch (error) { console.error(error); }
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

page.theme.value = remembered("theme", "auto");
page.range.value = remembered("range", "900");
past.range = Number(page.range.value);
page.theme.addEventListener("change", () => { remember("theme", page.theme.value); paint(); });
page.range.addEventListener("change", async () => {
  remember("range", page.range.value);
  past.range = Number(page.range.value);
  await past.refresh().catch(() => {});
  draw();
});
page.pause.addEventListener("click", () => {
  isPaused = !isPaused;
  page.pause.setAttribute("aria-pressed", String(isPaused));
  say(page.pause, isPaused ? "Paused" : "Pause");
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
addEventListener("hashchange", () => show(true));
show(false);
paint();
run();
