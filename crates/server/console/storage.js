// Views of the disks of this node: volumes, journal, entry logs, merges, scrub, garbage collection. And of object storage.

import { attempt } from "./api.js";
import { ago, bytes, card, count, dollars, duration, facts, h, meter, ms, perSecond, table, tiles } from "./dom.js";
import { Chart } from "./charts.js";

export function storage(past) {
  const top = tiles(["Journal sync, p99", "Journal files", "Entry logs", "Bytes written per byte added", "Adds in a group"]);
  const volumes = table("Volumes", [["Directory"], ["Taken", "wide"], ["Free", "number"], ["Of", "number"], ["Kept back", "number"], ["State"]]);
  const meters = new Map();
  const scrub = facts();
  const progress = meter("Scrub, of this pass", false);
  const findings = table("Damage that the scrub found", [["File"], ["What"], ["Advice"]], "none");
  const damaged = table("Damaged entries that wait for another copy", [["Ledger", "number"], ["From", "number"], ["To", "number"], ["File"]], "none");
  const collection = facts();
  const limbo = table("Ledgers of which entries may be missing here", [["Ledger", "number"], ["Why"], ["First missing", "number"], ["Missing", "number"]]);
  const charts = [
    new Chart("Journal sync, of the last minute", [{ label: "p50", key: "syncP50" }, { label: "p99", key: "syncP99" }], ms),
    new Chart("Bytes written, by cause", [{ label: "journal", key: "journalBytes" }, { label: "flush", key: "flushBytes" }, { label: "merge", key: "mergeBytes" }, { label: "compaction", key: "compactionBytes" }, { label: "ingest", key: "ingestBytes" }], perSecond(bytes)),
    new Chart("On disk", [{ label: "entry logs", key: "logBytes" }, { label: "journal files", key: "journalFiles" }, { label: "journal in use", key: "journalUsed" }], bytes),
    new Chart("Free space", [{ label: "all volumes", key: "volumeFree" }], bytes),
  ];
  return {
    title: "Storage",
    charts,
    element: h("div", {}, top.element, card("Disks", volumes.element), h("div", { class: "grid" }, charts.map((chart) => chart.element)),
      h("div", { class: "grid" },
        card("Scrub", progress.element, scrub.element, findings.element, damaged.element),
        card("Garbage collection, compaction and merges", collection.element),
        card("Limbo", limbo.element))),
    async refresh() {
      const [state, found, details, missing] = await Promise.all(["state", "scrub", "gc_details", "limbo"].map((name) => attempt(`api/v1/bookie/${name}`)));
      top.set([
        [ms(past.last("syncP99")), `p50 ${ms(past.last("syncP50"))}`],
        [bytes(past.last("journalFiles")), `${bytes(past.last("journalUsed"))} in use`],
        [count(past.last("logs")), bytes(past.last("logBytes"))],
        [((past.last("writeAmplification") ?? 0) / 1000).toFixed(2)],
        [count(past.last("groupP50")), "median of the last minute"],
      ]);
      if (state.body) volumes.set(state.body.volumes.map((volume) => {
        if (!meters.has(volume.dir)) meters.set(volume.dir, meter(`${volume.dir}, taken`));
        const taken = meters.get(volume.dir);
        taken.set(volume.totalBytes - volume.freeBytes, volume.totalBytes);
        return [volume.dir, taken.element, bytes(volume.freeBytes), bytes(volume.totalBytes), bytes(volume.reserveBytes), volume.full ? "FULL" : "has room"];
      }));
      if (found.body) {
        const { body } = found;
        progress.set(body.bytesDone, body.bytesInPass);
        progress.element.hidden = !body.running;
        const last = body.lastPass;
        scrub.set([
          ["Now", body.running ? `${bytes(body.bytesDone)} of ${bytes(body.bytesInPass)}, ${bytes(past.last("scrubBytes"))}/s` : "not running"],
          ["Passes", count(body.passes)],
          ["Last pass", last ? `ended ${ago(last.endMs, past.now())}: ${count(last.entries)} entries, ${bytes(last.bytes)} in ${count(last.logs)} logs, ${count(last.findings)} findings` : "none yet"],
          ["Damaged logs", count(body.damagedLogs)],
          ["Damaged entries", `${count(body.damagedRanges)} ranges of ${count(body.damagedLedgers)} ledgers; made good: ${count(body.damagedRangesMadeGood)}`],
        ]);
        findings.set(body.findings.map((one) => [`${one.file} at ${count(one.offset)}`, one.what, one.advice]));
        damaged.set(body.damaged.map((one) => [one.ledger, one.first, one.last, one.file]));
      }
      if (details.body) {
        const [round] = details.body;
        const ours = round.bindery;
        collection.set([
          ["Last round", `ended ${ago(ours.lastRoundEndMs, past.now())}: ${count(ours.lastRoundLedgers)} ledgers looked at, ${count(ours.lastRoundRemoved)} removed`],
          ["Stopped because", ours.stoppedBecause],
          ["Ledgers removed", count(ours.ledgersRemoved)],
          ["Compaction", round.majorCompacting ? "major, under way" : round.minorCompacting ? "minor, under way" : "not under way"],
          ["Logs dropped, rewritten", `${count(ours.logsDropped)}, ${count(ours.logsRewritten)} (${bytes(ours.bytesCopied)} copied)`],
          ["Merges", `${count(ours.merges)} of ${count(ours.logsMerged)} logs, ${bytes(ours.bytesMerged)}`],
          ["Waits to be deleted", bytes(ours.replacedBytes)],
          ["Logs that cannot be read", ours.logsSkipped.length > 0 ? ours.logsSkipped.map((one) => `${one.log}: ${one.why}`).join("; ") : null],
          ["Last error", ours.lastError],
        ]);
      }
      if (missing.body) limbo.set(missing.body.ledgers.map((one) => [one.ledgerId, one.why, one.firstMissing, one.missing]));
      return [state, found, details, missing].find((one) => one.problem)?.problem ?? null;
    },
  };
}

export function tiering(past) {
  const top = tiles(["Behind", "Oldest entry that waits", "In the bucket", "Requests cost so far", "Storage, a month", "Ledgers done"]);
  const why = h("p", { class: "note" });
  const tierer = facts();
  const reads = facts();
  const stages = table("Rounds of the tierer, by stage", [["Stage"], ["Times", "number"], ["Last", "number"], ["p50", "number"], ["p99", "number"]]);
  const behind = table("Ledgers that are behind most", [["Ledger", "number"], ["State"], ["Entries", "number"], ["Bytes", "number"], ["Behind for", "number"], ["Why"]], "no ledger is behind");
  const charts = [
    new Chart("Tiering lag, in time", [{ label: "oldest entry that waits", key: "tierLagMs" }], ms),
    new Chart("Tiering lag, in bytes", [{ label: "not in the bucket yet", key: "tierLagBytes" }], bytes),
    new Chart("To the bucket", [{ label: "put", key: "tierPutBytes" }], perSecond(bytes)),
    new Chart("Requests to the bucket", [{ label: "requests", key: "tierRequests" }], perSecond(count)),
  ];
  return {
    title: "Tiering",
    charts,
    element: h("div", {}, why, top.element, h("div", { class: "grid" }, charts.map((chart) => chart.element)),
      card("Behind", behind.element),
      h("div", { class: "grid" }, card("Tierer", tierer.element, stages.element), card("Reads and local copies of this bookie", reads.element))),
    async refresh() {
      const [status, local] = await Promise.all([attempt("api/v1/tier/status"), attempt("api/v1/bookie/tier")]);
      why.hidden = !status.problem;
      if (status.problem) why.textContent = `Tierer: ${status.problem.message}`;
      if (status.body) {
        const { body } = status;
        top.set([
          [bytes(body.lag.bytes), `${count(body.lag.entries)} entries`],
          [duration(body.lag.seconds), `p50 ${duration(body.lagP50Seconds)}`],
          [bytes(body.catalogueObjectBytes), `${count(body.catalogueObjects)} objects`],
          [dollars(body.cost.requestsUsd), `${dollars(body.cost.perGibUsd)} for a GiB`],
          [dollars(body.cost.storageMonthUsd), `${bytes(body.catalogueUnreferencedBytes)} not referred to`],
          [count(body.ledgersDone), `${count(body.ledgersWatched)} watched`],
        ]);
        tierer.set([
          ["Store", body.store],
          ["State", body.stopping ? "ends" : body.paused ? "paused" : body.crowded ? "crowded: more ledgers than it may watch" : "runs"],
          ["Held up by", body.limit ? `${body.limit[0]}, ${Math.round(body.limit[1] * 100)} % of the time` : "nothing"],
          ["Objects being built", `${body.objectsBuilding[0]} of ${body.objectsBuilding[1]}`],
          ["Requests", `${count(body.requests.puts)} puts, ${count(body.requests.gets)} gets, ${count(body.requests.lists)} lists, ${count(body.requests.deletes)} deletes`],
          ["An idle hour costs", dollars(body.cost.idleHourUsd)],
          ["Ledgers stopped, failing", `${count(body.ledgersStopped)}, ${count(body.ledgersFailing)}`],
          ["Uploads that failed", count(body.uploadFailures)],
          ["Objects damaged, missing", `${count(body.objectsDamaged)}, ${count(body.objectsMissing)}`],
          ["Last error", body.lastError],
        ]);
        stages.set(body.stages.map(({ stage, took }) => [stage, count(took.count), duration(took.lastSeconds), duration(took.p50Seconds), duration(took.p99Seconds)]));
        behind.set(body.behind.map((one) => [one.ledger, one.state, count(one.lag.entries), bytes(one.lag.bytes), duration(one.lag.seconds), one.why ?? ""]));
      }
      if (local.body) {
        const { body } = local;
        reads.set([
          ["Bucket", `${body.url}, ${body.reachable ? "answers" : "does not answer"}`],
          ["Reads from it", `${count(body.reads.misses)} fetched, ${count(body.reads.hits)} from memory, ${count(body.reads.failed)} failed, ${count(body.reads.waiting)} wait`],
          ["Last failure", body.reads.lastFailure],
          ["Local copies let go", `${count(body.trim.entries)} entries of ${count(body.trim.ledgers)} ledgers; ${count(body.trim.waiting)} ledgers wait`],
          ["Last round", ago(body.trim.lastEndMs, past.now())],
          ["Stopped because", body.trim.stoppedBecause],
          ["Copies that differ", body.differing.length > 0 ? body.differing.map((one) => JSON.stringify(one)).join("; ") : "none"],
        ]);
      } else reads.set([["Bucket", local.problem.message]]);
      return null;
    },
  };
}
