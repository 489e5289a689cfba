// Views of this node: how much it does and how fast, its memory, and its peers.

import { attempt } from "./api.js";
import { bytes, card, count, duration, h, meter, ms, perSecond, spark, table, tiles } from "./dom.js";
import { Chart } from "./charts.js";

/** From two views of the flow: what happened in a second. */
function rates(before, flow) {
  if (!before || flow.monotonicMs <= before.monotonicMs) return null;
  const seconds = (flow.monotonicMs - before.monotonicMs) / 1000;
  const of = (name) => Math.max(0, flow.totals[name] - before.totals[name]) / seconds;
  return { adds: of("adds"), addBytes: of("addBytes"), reads: of("reads"), readBytes: of("readBytes") };
}

export function overview(past) {
  const top = tiles(["Adds", "Reads", "Add latency, p99", "Read latency, p99", "Connections", "Ledgers", "Under way"]);
  const charts = [
    new Chart("Throughput", [{ label: "adds", key: "adds" }, { label: "reads", key: "reads" }, { label: "adds refused", key: "addsRejected" }], perSecond(count)),
    new Chart("Bytes of entries", [{ label: "added", key: "addBytes" }, { label: "read", key: "readBytes" }], perSecond(bytes)),
    new Chart("Add latency, of the last minute", [{ label: "p50", key: "addP50" }, { label: "p99", key: "addP99" }, { label: "p99.9", key: "addP999" }], ms),
    new Chart("Read latency, of the last minute", [{ label: "p50", key: "readP50" }, { label: "p99", key: "readP99" }, { label: "p99.9", key: "readP999" }], ms),
  ];
  let before = null;
  return {
    title: "Overview",
    charts,
    element: h("div", {}, top.element, h("div", { class: "grid" }, charts.map((chart) => chart.element))),
    async refresh() {
      const { body: flow, problem } = await attempt("api/v1/bookie/flow?limit=0");
      if (problem) return problem;
      const rate = rates(before, flow);
      before = flow;
      top.set([
        [perSecond(count)(rate?.adds), perSecond(bytes)(rate?.addBytes)],
        [perSecond(count)(rate?.reads), perSecond(bytes)(rate?.readBytes)],
        [ms(past.last("addP99")), `p50 ${ms(past.last("addP50"))}`],
        [ms(past.last("readP99")), `p50 ${ms(past.last("readP50"))}`],
        [count(flow.totals.connections), flow.totals.stalled > 0 ? `${flow.totals.stalled} stalled` : "none stalled"],
        [count(past.last("ledgers"))],
        [`${count(flow.admission.addsInProgress)} adds`, `${count(flow.totals.diskReadsQueued)} reads wait for a disk`],
      ]);
      return null;
    },
  };
}

const SORTS = [
  ["stalled", "longest without progress"], ["held", "most memory held"], ["queued", "most reads that wait"], ["owed", "most adds unanswered"],
  ["adds", "most adds"], ["reads", "most reads"], ["in", "most bytes received"], ["out", "most bytes sent"],
];
const STALLED_MS = 1000;
const WAITS = {
  inbound: "waits for memory to read into",
  "large-frame": "waits for memory for a large frame",
  outbox: "waits for room for its answers",
  "write-room": "waits for room in the write pool",
  reads: "waits for its reads in hand to finish",
  tenant: "waits for the limit of its tenant",
};

/** What is wrong with a connection, as `bindery flow` says it. */
function stateOf(connection) {
  const words = [];
  if (connection.progressMs !== null && connection.progressMs >= STALLED_MS) words.push(`STALLED: took nothing for ${duration(connection.progressMs / 1000)}`);
  if (connection.isWindowFull) words.push("window full");
  if (connection.notReadBecause) words.push(`not read for ${duration((connection.notReadMs ?? 0) / 1000)}: ${WAITS[connection.notReadBecause] ?? connection.notReadBecause}`);
  return words.join("; ");
}

/** What a connection holds, pool by pool. */
function heldOf(connection) {
  const pools = [["inbound", "inboundBytes"], ["inbound-large", "inboundLargeBytes"], ["outbox", "outboxBytes"], ["outbound", "outboundBytes"], ["outbound-priority", "outboundPriorityBytes"]];
  return pools.filter(([, name]) => connection[name] > 0).map(([pool, name]) => `${pool} ${bytes(connection[name])}`).join(", ") || "nothing";
}

/** One direction of a tenant: its rate from two views, its limit, and what waits for it. */
function tenantSide(tenant, side, before, now) {
  const old = before?.tenants?.find((one) => one.name === tenant.name);
  const seconds = before ? (now.monotonicMs - before.monotonicMs) / 1000 : 0;
  const rate = old && seconds > 0 ? `${bytes(Math.max(0, tenant[side].bytes - old[side].bytes) / seconds)}/s` : "-";
  const of = tenant[side];
  return [rate, of.limit === null ? "none" : `${bytes(of.limit)}/s`, count(of.waiting), of.waits > 0 ? `${count(of.waits)}, ${duration(of.waitedMs / 1000)}` : "0"];
}

export function flow(past) {
  const top = tiles(["Connections", "Stalled", "They hold", "Adds wait for room", "Adds refused, ever"]);
  const pools = table("Pools of bytes, the fullest first; each is a part of the memory limit", [["Pool"], ["Taken", "wide"], ["Used", "number"], ["Of", "number"], ["Waiting", "number"], ["Waits so far", "number"], ["Lately"]]);
  const folded = h("p", { class: "quiet" });
  const peers = table("Connections", [["Peer"], ["Class"], ["Protocol"], ["Holds", "number"], ["Of which pools"], ["Not taken", "number"], ["Reads wait", "number"], ["Adds owed", "number"], ["State"]], "none");
  const rest = h("p", { class: "quiet" });
  const tenants = table("Tenants, and what each adds and reads in a second", [["Tenant"], ["Weight", "number"], ["Adds", "number"], ["Limit", "number"], ["Waiting", "number"], ["Waits so far", "number"], ["Reads", "number"], ["Limit", "number"], ["Waiting", "number"], ["Waits so far", "number"]]);
  const ofTenants = card("Tenants", tenants.element);
  ofTenants.hidden = true;
  let before = null;
  const sort = h("select", { id: "sort" }, SORTS.map(([name, text]) => h("option", { value: name }, text)));
  const chart = new Chart("Memory of pools", [{ label: "write", key: "pool.write" }, { label: "outbound", key: "pool.outbound" }, { label: "outbox", key: "pool.outbox" }, { label: "inbound", key: "pool.inbound" }, { label: "index", key: "pool.index" }], bytes);
  const stalls = new Chart("Connections", [{ label: "open", key: "connections" }, { label: "stalled", key: "stalled" }], count);
  const rows = new Map();
  const row = (pool) => {
    if (!rows.has(pool)) rows.set(pool, { meter: meter(`${pool}, taken`), spark: spark() });
    return rows.get(pool);
  };
  const view = {
    title: "Memory and peers",
    charts: [chart, stalls],
    element: h("div", {}, top.element,
      card("Who is slow", h("form", { class: "inline", onsubmit: (event) => event.preventDefault() }, h("label", {}, "Order", sort)), peers.element, rest),
      ofTenants,
      card("Byte pools", pools.element, folded),
      h("div", { class: "grid" }, chart.element, stalls.element)),
    async refresh() {
      const { body, problem } = await attempt(`api/v1/bookie/flow?sort=${sort.value}&limit=50`);
      if (problem) return problem;
      top.set([count(body.totals.connections), count(body.totals.stalled), bytes(body.totals.heldBytes), count(body.admission.connectionsWaiting), count(body.admission.addsRejected)]);
      const [used, empty] = [[], []];
      for (const pool of body.pools) (pool.usedBytes > 0 || pool.waiting > 0 || pool.waits > 0 ? used : empty).push(pool);
      used.sort((a, b) => b.usedBytes / b.capacityBytes - a.usedBytes / a.capacityBytes);
      pools.set(used.map((pool) => {
        const parts = row(pool.name);
        parts.meter.set(pool.usedBytes, pool.capacityBytes);
        parts.spark.set(past.column(`pool.${pool.name}`), pool.capacityBytes);
        const full = pool.waiting > 0 ? `FULL: ${count(pool.waiting)}` : "0";
        return [pool.name, parts.meter.element, bytes(pool.usedBytes), bytes(pool.capacityBytes), full, pool.waits > 0 ? `${count(pool.waits)}, ${duration(pool.waitedMs / 1000)}` : "0", parts.spark.element];
      }));
      folded.textContent = empty.length > 0 ? `Empty, and nobody ever waited: ${empty.map((pool) => pool.name).join(", ")}` : "";
      ofTenants.hidden = (body.tenants ?? []).length < 2;
      tenants.set((body.tenants ?? []).map((one) => [one.name, count(one.weight), ...tenantSide(one, "adds", before, body), ...tenantSide(one, "reads", before, body)]));
      before = body;
      peers.set(body.connections.map((one) => [one.peer, one.class, one.protocol, bytes(one.heldBytes), heldOf(one), bytes(one.unsentBytes), count(one.readsQueued), count(one.addsOwed), stateOf(one)]));
      rest.textContent = body.rest.connections > 0 ? `${count(body.rest.connections)} more hold ${bytes(body.rest.heldBytes)}` : "";
      return null;
    },
  };
  sort.addEventListener("change", () => view.refresh());
  return view;
}
