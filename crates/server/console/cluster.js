// The cluster: its bookies, ledgers that lack copies, and repair.

import { ask, attempt } from "./api.js";
import { ago, bytes, card, count, duration, facts, h, meter, perSecond, table, tiles } from "./dom.js";
import { Chart } from "./charts.js";

/** The pace of the cluster's repair is that of so long. */
const PACE_OVER_MS = 120000;
const LOOK_PERIOD_MS = 4000;

/** How many ledgers are marked, from look to look. */
class Marks {
  constructor() {
    this.looks = [];
    this.problem = null;
    this.hasMore = false;
  }

  async look() {
    const last = this.looks[this.looks.length - 1];
    const now = performance.now();
    if (last && now - last.at < LOOK_PERIOD_MS) return;
    try {
      const { body, headers } = await ask("api/v1/autorecovery/list_under_replicated_ledger");
      this.add(now, body.length);
      this.hasMore = headers.has("bindery-more");
      this.problem = null;
    } catch (problem) {
      // That is how BookKeeper says that there are none.
      if (problem.status === 404 && /No under replicated/.test(problem.message)) this.add(now, 0);
      else this.problem = problem;
    }
  }

  add(at, ledgers) {
    this.looks.push({ at, ledgers });
    this.looks = this.looks.filter((look) => look.at >= at - PACE_OVER_MS);
  }

  get now() { return this.looks[this.looks.length - 1]?.ledgers; }

  /** Ledgers that go away in a second, since there were most; null while none does. */
  pace() {
    const last = this.looks[this.looks.length - 1];
    if (!last) return null;
    const most = this.looks.reduce((most, look) => (look.ledgers >= most.ledgers ? look : most));
    return most.ledgers > last.ledgers ? ((most.ledgers - last.ledgers) * 1000) / (last.at - most.at) : null;
  }
}

export function cluster(past) {
  const top = tiles(["Bookies that take writes", "Read-only", "Away", "Ledgers that lack copies", "Repair, this node", "Time left"]);
  const bookies = table("Bookies, as their registrations and cookies say", [["Bookie"], ["State"], ["Console"]], "no bookies");
  const copies = table("Ledgers that wait for repair, by live copies of the entry that has the fewest; as far as this node has looked", [["Live copies"], ["Ledgers", "number"], ["Share", "wide"]], "none");
  const meters = new Map();
  const marks = new Marks();
  const repair = facts();
  const stuck = table("Ledgers that could not be repaired when they were last tried", [["Ledger", "number"], ["Why"]], "none");
  const away = table("Bookies that the auditor misses", [["Bookie"], ["Since"]], "none");
  const charts = [
    new Chart("Ledgers that lack copies, in the cluster", [{ label: "marked", key: "repairListed" }], count),
    new Chart("Copied by this node", [{ label: "bytes", key: "repairBytes" }], perSecond(bytes)),
  ];
  return {
    title: "Cluster",
    charts,
    element: h("div", {}, top.element, h("div", { class: "grid" }, card("Bookies", bookies.element), card("Missing copies", copies.element, away.element)),
      h("div", { class: "grid" }, charts.map((chart) => chart.element)),
      h("div", { class: "grid" }, card("Repair", repair.element), card("Stuck", stuck.element))),
    async refresh() {
      const [info, listed, report, delay] = await Promise.all([
        attempt("api/v1/bookie/cluster_info"), attempt("api/v1/console/bookies"), attempt("api/v1/autorecovery/report"), attempt("api/v1/autorecovery/lost_bookie_recovery_delay"),
      ]);
      await marks.look();
      const [pace, waiting] = [marks.pace(), marks.now];
      const left = waiting === 0 && !marks.hasMore ? "nothing to do" : pace === null ? "no end in sight" : `${marks.hasMore ? "more than " : ""}${duration(waiting / pace)}`;
      top.set([
        [count(info.body?.writableBookiesCount)], [count(info.body?.readonlyBookiesCount)], [count(info.body?.unavailableBookiesCount)],
        [`${marks.hasMore ? "more than " : ""}${count(waiting)}`, pace === null ? "" : `${count(pace * 60)} fewer a minute`],
        [perSecond(bytes)(past.last("repairBytes")), `ledgers under way: ${count(report.body?.under_way.length ?? 0)}`],
        [waiting === undefined ? "–" : left],
      ]);
      if (listed.body) {
        bookies.set(listed.body.bookies.map((one) => {
          const here = one.id === past.node?.bookie;
          const link = here ? "this page" : one.console ? h("a", { href: one.console, rel: "noopener noreferrer" }, one.console) : "none";
          return [one.id, { writable: "takes writes", readOnly: "read-only", away: "AWAY" }[one.state] ?? one.state, link];
        }));
      }
      if (report.body) {
        const { body } = report;
        const groups = Object.entries(body.waiting).map(([live, ledgers]) => [Number(live), ledgers]).sort(([a], [b]) => a - b);
        const all = groups.reduce((sum, [, ledgers]) => sum + ledgers, 0);
        copies.set(groups.map(([live, ledgers]) => {
          const name = live > 1000 ? "not known" : String(live);
          if (!meters.has(name)) meters.set(name, meter(`ledgers with ${name} live copies`, false));
          meters.get(name).set(ledgers, all);
          return [name, count(ledgers), meters.get(name).element];
        }));
        away.set(Object.entries(body.away).map(([id, since]) => [id, ago(since, past.now())]));
        stuck.set(body.stuck.map((one) => [one.ledger, one.why]));
        repair.set([
          ["Auditor", info.body?.auditorElected ? info.body.auditorId : "no bookie is the auditor: no loss is noticed"],
          ["Switched on", info.body ? (info.body.ledgerReplicationEnabled ? "yes" : "no, in the whole cluster") : "–"],
          ["Delay before repair of a lost bookie", delay.body ? delay.body.replace(/^[^:]*: */, "") + " s" : delay.problem.message],
          ["Repaired by this node", `${count(body.repaired)} ledgers, ${count(body.entries)} entries, ${bytes(body.bytes)}`],
          ["Found whole", count(body.found_whole)],
          ["Failed attempts", count(body.failures)],
          ["Pace", body.bytes_per_second === null ? "no limit" : `${bytes(body.bytes_per_second)}/s${body.is_slowed_down ? ", less than configured: others need the disks" : ""}`],
          ["Memory held", bytes(body.held_bytes)],
          ["Overdue", count(body.overdue)],
          ["Last check of all copies", `${body.check.is_running ? "under way" : `ended ${ago(body.check.ended_ms, past.now())}`}: ${count(body.check.whole)} whole, ${count(body.check.lacking)} lacking, ${count(body.check.unchecked)} not checked`],
          ["Badly placed", count(body.placement.badly_placed)],
          ["Order", body.order ? JSON.stringify(body.order) : null],
          ["Last error", body.last_error ? `${body.last_error} (${ago(body.last_error_ms, past.now())})` : null],
        ]);
      } else repair.set([["Repair", report.problem.message]]);
      return info.problem?.isAbsent ? null : info.problem ?? null;
    },
  };
}
