// The ledger browser: ids, metadata, where each part and copy is, and entries as text, JSON or hexadecimal digits.

import { ask, askForToken, attempt, forgetToken, getPrivate, hasToken } from "./api.js";
import { ago, bytes, card, count, facts, h, table } from "./dom.js";

const PAGE = 50;
const ENTRIES = 20;
/** Bytes of an entry that are shown. */
const SHOWN_MAX = 4096;
// What indentation may make of nested brackets.
const INDENTED_MAX = 65536;

/** What an answer with `format=json` has of an entry, as bytes. */
function bytesOf(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  if (typeof value.base64 === "string") return Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
  return new TextEncoder().encode(value.text ?? "");
}

/** Sixteen bytes in a line, with what is readable of them. */
function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const some = [...data.subarray(at, at + 16)];
    const digits = some.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = some.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${letters}`);
  }
  return lines.join("\n");
}

function shownAs(form, value) {
  const whole = bytesOf(value);
  const data = whole.subarray(0, SHOWN_MAX);
  const length = value.length !== undefined && typeof value !== "string" ? value.length : whole.length;
  const rest = length > data.length ? `\n(${bytes(length - data.length)} more)` : "";
  if (form === "hex") return hex(data) + rest;
  const text = new TextDecoder().decode(data);
  if (form === "json") {
    if (whole.length > SHOWN_MAX) return text + rest;
    try { return JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(whole)), null, 2).slice(0, INDENTED_MAX); } catch { return `not JSON; as text:\n${text}${rest}`; }
  }
  return text + rest;
}

/** With the keyboard, too, what is longer than its place is scrolled. */
const contentOf = (text) => h("pre", { tabindex: text.length > 500 ? "0" : null }, text);

/** Custom metadata is base64 in the answer. */
function customOf(custom) {
  return Object.entries(custom ?? {}).map(([key, value]) => {
    try { return [key, new TextDecoder().decode(bytesOf({ base64: value }))]; } catch { return [key, String(value)]; }
  });
}

export function ledgers(past) {
  const note = h("p", { class: "note", role: "status", hidden: true });
  const tell = (text, kind = "warn") => {
    note.hidden = !text;
    note.className = `note ${kind}`;
    note.textContent = text ?? "";
  };
  const search = h("input", { id: "ledger", inputmode: "numeric", pattern: "[0-9]*", size: "14" });
  const list = h("div", {});
  const detail = h("div", { hidden: true });
  const pages = { after: [null], more: null };
  const back = h("button", { type: "button", onclick: () => { pages.after.pop(); show(); } }, "Previous");
  const next = h("button", { type: "button", onclick: () => { pages.after.push(pages.more); show(); } }, "Next");
  const form = h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); if (/^[0-9]+$/.test(search.value.trim())) open(search.value.trim()); else tell("Give the id of a ledger: a number."); } },
    h("label", {}, "Ledger", search), h("button", { type: "submit" }, "Show"));

  const listed = table("Ledgers, the lowest id first", [["Ledger", "number"], ["State"], ["Entries", "number"], ["Bytes", "number"], ["Replicas"], ["Bookies of its last part"], ["Made"]], "none");
  list.append(listed.element, h("p", {}, back, " ", next));

  async function show() {
    const after = pages.after[pages.after.length - 1];
    try {
      const query = `print_metadata=true&decode_meta=true&limit=${PAGE}${after === null ? "" : `&after=${after}`}`;
      const { body, headers } = await ask(`api/v1/ledger/list?${query}`);
      pages.more = headers.get("bindery-more")?.match(/after=([0-9]+)/)?.[1] ?? null;
      const rows = Object.entries(body).map(([id, metadata]) => {
        const link = h("button", { type: "button", class: "link", onclick: () => open(id) }, id);
        if (!metadata) return [link, "cannot be read", "–", "–", "–", "–", "–"];
        const parts = Object.values(metadata.allEnsembles ?? {});
        const last = parts[parts.length - 1] ?? [];
        const sizes = `${metadata.ensembleSize}/${metadata.writeQuorumSize}/${metadata.ackQuorumSize}`;
        const isClosed = metadata.state === "CLOSED";
        return [link, stateOf(metadata), isClosed ? count(metadata.lastEntryId + 1) : "open", isClosed ? bytes(metadata.length) : "open", sizes, last.map((one) => one.id).join(", "), ago(metadata.ctime, past.now())];
      });
      listed.set(rows);
      back.disabled = pages.after.length === 1;
      next.disabled = pages.more === null;
      tell(null);
    } catch (problem) {
      tell(problem.isAbsent || problem.status === 200
        ? "This node's version does not list ledgers on its admin port. bindery ledger list and bindery ledger show do."
        : `Ledgers cannot be listed: ${problem.message}`, problem.isAbsent ? "" : "bad");
    }
  }

  const stateOf = (metadata) => ({ OPEN: "open", IN_RECOVERY: "in recovery", CLOSED: "closed" })[metadata.state] ?? metadata.state;

  /** The bookies of an entry's copies: its ensemble, from its number on, round and round. */
  function placed(metadata, ensemble) {
    return ensemble.length > metadata.writeQuorumSize ? `each entry on ${metadata.writeQuorumSize} of these ${ensemble.length}` : "each entry on all of these";
  }

  async function open(id) {
    const answer = await attempt(`api/v1/ledger/metadata?ledger_id=${id}`);
    if (answer.problem) {
      tell(answer.problem.status === 404 && !/exist/.test(answer.problem.message)
        ? "This node's version does not show ledgers on its admin port. bindery ledger show does."
        : `Ledger ${id}: ${answer.problem.message}`, "bad");
      return;
    }
    tell(null);
    const metadata = answer.body[id] ?? Object.values(answer.body)[0];
    const [tier, mark] = await Promise.all([attempt(`api/v1/tier/ledger?id=${id}`), attempt(`api/v1/bookie/tier/ledger?id=${id}`)]);
    const about = facts();
    const isClosed = metadata.state === "CLOSED";
    about.set([
      ["State", stateOf(metadata)],
      ["Last entry", isClosed ? (metadata.lastEntryId < 0 ? "none: it is empty" : count(metadata.lastEntryId)) : "not known before it is closed"],
      ["Bytes", isClosed ? bytes(metadata.length) : "not known before it is closed"],
      ["Ensemble, write quorum, ack quorum", `${metadata.ensembleSize}, ${metadata.writeQuorumSize}, ${metadata.ackQuorumSize}`],
      ["Digest", metadata.digestType],
      ["Made", `${new Date(metadata.ctime).toLocaleString("en-GB")} (${ago(metadata.ctime, past.now())})`],
      ["Format of metadata", metadata.metadataFormatVersion],
      ["In object storage", tier.body ? tieredText(tier.body, metadata) : tier.problem.isAbsent ? null : tier.problem.message],
      ["Local copies let go here", mark.body?.trimmedBelow !== null && mark.body ? `below entry ${mark.body.trimmedBelow}` : null],
    ]);
    const custom = table("Custom metadata", [["Key"], ["Value"]], "none");
    custom.set(customOf(metadata.customMetadata));
    const segments = Object.entries(metadata.allEnsembles ?? {}).map(([first, ensemble]) => [Number(first), ensemble]).sort(([a], [b]) => a - b);
    const parts = table("Where each part is", [["From entry", "number"], ["To", "number"], ["Bookies"], ["Copies"]]);
    parts.set(segments.map(([first, ensemble], at) => {
      const end = at + 1 < segments.length ? segments[at + 1][0] - 1 : isClosed ? metadata.lastEntryId : "the end";
      return [first, end, ensemble.map((one) => (one.id === past.node?.bookie ? `${one.id} (this node)` : one.id)).join(", "), placed(metadata, ensemble)];
    }));
    const heading = h("h2", { tabindex: "-1" }, `Ledger ${id}`);
    detail.replaceChildren(
      h("p", {}, h("button", { type: "button", onclick: () => { detail.hidden = true; list.hidden = false; search.focus(); } }, "Back to all ledgers")),
      heading, h("div", { class: "grid" }, card("Metadata", about.element, custom.element), card("Copies", parts.element)), entriesOf(id, metadata, segments));
    detail.hidden = false;
    list.hidden = true;
    heading.focus();
  }

  function tieredText(tier, metadata) {
    if (tier.tiered === null) return `not yet (${tier.state})`;
    const whole = metadata.state === "CLOSED" && tier.tiered >= metadata.lastEntryId;
    return `${whole ? "all of it" : `up to entry ${count(tier.tiered)}`} (${tier.state})`;
  }

  /** The entries of a ledger, some at a time. */
  function entriesOf(id, metadata, segments) {
    const [first, kind] = [h("input", { inputmode: "numeric", value: "0", size: "10" }), h("select", {}, ["text", "json", "hex"].map((form) => h("option", {}, form)))];
    const status = h("p", { class: "quiet", role: "status" });
    const rows = table("Entries", [["Entry", "number"], ["Bytes", "number"], ["On bookies"], ["Content", "wide mono"]], "none");
    let shown = {};
    let more = null;
    const draw = () => rows.set(Object.entries(shown).map(([entry, value]) => [Number(entry), length(value), copies(Number(entry)), contentOf(shownAs(kind.value, value))]));
    const length = (value) => count(typeof value === "string" ? bytesOf(value).length : value.length ?? bytesOf(value).length);
    const copies = (entry) => {
      const part = segments.filter(([from]) => from <= entry).pop();
      if (!part) return "–";
      const all = part[1];
      return Array.from({ length: metadata.writeQuorumSize }, (_, at) => all[(entry + at) % all.length]?.id).join(", ");
    };
    async function load() {
      const from = Number(first.value);
      if (!Number.isSafeInteger(from) || from < 0) { status.textContent = "Give the number of an entry, from 0 on."; return; }
      status.textContent = "reading";
      try {
        shown = await getPrivate(`api/v1/ledger/read?ledger_id=${id}&start_entry_id=${from}&end_entry_id=${from + ENTRIES - 1}&format=json`);
        const numbers = Object.keys(shown).map(Number);
        more = numbers.length > 0 ? Math.max(...numbers) + 1 : null;
        status.textContent = numbers.length > 0 ? `${count(numbers.length)} entries from ${from} on` : `no confirmed entries from ${from} on`;
        further.disabled = more === null;
        draw();
      } catch (problem) {
        if (problem.needsToken) {
          status.textContent = `Entries are for those who may make changes: ${problem.message}`;
          if (hasToken()) forgetToken();
          if (problem.status === 401 && await askForToken(problem.message)) await load();
        } else status.textContent = problem.isAbsent ? `No entries: ${problem.message}` : `Entries cannot be read: ${problem.message}`;
      }
    }
    const further = h("button", { type: "button", disabled: true, onclick: () => { if (more !== null) { first.value = String(more); load(); } } }, "Next entries");
    kind.addEventListener("change", draw);
    return card("Entries", h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); load(); } },
      h("label", {}, "From entry", first), h("label", {}, "As", kind), h("button", { type: "submit" }, "Read"), further), status, rows.element);
  }

  return {
    title: "Ledgers",
    charts: [],
    element: h("div", {}, form, note, list, detail),
    begin: show,
    async refresh() { return null; },
  };
}
