// What the node remembers, and charts of it.

import { get } from "./api.js";
import { h, say } from "./dom.js";

const HEIGHT = 190;
/** A chart of less is drawn as if it were of so much. */
const SECONDS_MIN = 120;
/** Steps of the axis of time, whose labels have minutes, in seconds. */
const MINUTES = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
/** Steps of an axis of bytes. */
const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** The rows that this page has of the node's past, by the step between them. */
export class Past {
  constructor() {
    this.node = null;
    this.index = new Map();
    this.steps = new Map();
    this.asked = new Map();
    this.ahead = 0;
    this.turn = Promise.resolve();
    this.range = 900;
  }

  get step() { return this.range <= 3600 ? 5 : 60; }

  /** Asks for the rows that are new, or for all of a range that is longer than what was asked for before; one request after the other. */
  refresh() {
    this.turn = this.turn.catch(() => {}).then(() => this.load());
    return this.turn;
  }

  async load() {
    const step = this.step;
    const wanted = Math.ceil(this.range / step);
    const isLonger = wanted > (this.asked.get(step) ?? 0);
    const rows = isLonger ? [] : this.steps.get(step);
    const since = rows.length > 0 ? rows[rows.length - 1][0] : 0;
    const answer = await get(`api/v1/console/history?step=${step}&since=${since}&newest=${wanted}`);
    this.node = answer.node;
    this.index = new Map(answer.series.map((key, at) => [key, at + 1]));
    rows.push(...answer.rows);
    const most = answer.steps.find((one) => one.seconds === step).rows;
    if (rows.length > most) rows.splice(0, rows.length - most);
    if (answer.rows.length > 0) this.ahead = rows[rows.length - 1][0] - Date.now();
    this.steps.set(step, rows);
    this.asked.set(step, Math.max(wanted, this.asked.get(step) ?? 0));
  }

  /** The node's clock, to a few seconds. */
  now() { return Date.now() + this.ahead; }

  /** Rows of the range that is shown. */
  rows() {
    const rows = this.steps.get(this.step) ?? [];
    if (rows.length === 0) return rows;
    const from = rows[rows.length - 1][0] - this.range * 1000;
    return rows.filter((row) => row[0] >= from);
  }

  column(key, rows = this.rows()) {
    const at = this.index.get(key);
    return rows.map((row) => row[at] ?? null);
  }

  last(key) {
    const rows = this.steps.get(this.step) ?? [];
    return rows.length > 0 ? (rows[rows.length - 1][this.index.get(key)] ?? null) : null;
  }
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines over time with a legend that says the last values, or those under the cursor. Arrow keys move the cursor. */
export class Chart {
  constructor(title, series, format) {
    Object.assign(this, { title, series, format, plot: null, data: [[]] });
    this.isBinary = format(1024).startsWith("1.00 KiB");
    this.values = series.map(() => h("span", {}, "–"));
    this.when = h("span", { class: "quiet" });
    const items = series.map((one, at) => h("li", {}, h("span", { class: `swatch k${at}` }), `${one.label} `, this.values[at]));
    this.legend = h("ul", { class: "legend" }, items, h("li", {}, this.when));
    this.place = h("div", { class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.move(event), onblur: () => this.leave() });
    this.element = h("figure", { class: "card" }, h("h3", {}, title), this.place, h("figcaption", {}, this.legend));
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.place);
  }

  draw(past) {
    const rows = past.rows();
    this.data = [rows.map((row) => row[0] / 1000), ...this.series.map((one) => past.column(one.key, rows))];
    this.range = past.range;
    if (this.plot === null) this.make();
    else this.plot.setData(this.data);
    if (this.plot !== null && this.at === undefined) this.tell(this.data[0].length - 1);
  }

  make() {
    const width = this.place.clientWidth;
    if (width === 0 || this.data[0].length === 0) return;
    const axis = (more) => ({ stroke: color("--quiet"), font: "12px system-ui, sans-serif", grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid"), width: 1 }, ...more });
    this.plot = new window.uPlot({
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "console" } },
      scales: {
        x: { range: (plot, from, to) => [Math.max(to - this.range, Math.min(from, to - SECONDS_MIN)), to] },
        y: { range: (plot, from, to) => [0, to > 0 ? to * 1.1 : 1] },
      },
      axes: [
        axis({ space: 80, incrs: MINUTES, values: (plot, ticks) => ticks.map(clock) }),
        axis({ size: 78, ...(this.isBinary ? { incrs: BINARY } : {}), values: (plot, ticks) => ticks.map((tick) => this.format(tick)) }),
      ],
      series: [{}, ...this.series.map((one, at) => ({ label: one.label, stroke: color(`--c${at + 1}`), width: 1.6, points: { show: false }, spanGaps: false }))],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? this.data[0].length - 1)] },
    }, this.data, this.place);
  }

  /** Says the values of a row; for all of it where it is a picture to the reader. */
  tell(at) {
    const values = this.series.map((_, series) => this.format(this.data[series + 1]?.[at] ?? null));
    values.forEach((value, series) => say(this.values[series], value));
    const time = this.data[0][at];
    say(this.when, time === undefined ? "no rows yet" : new Date(time * 1000).toLocaleTimeString("en-GB"));
    const most = this.series.map((one, series) => `${one.label} ${values[series]}, at most ${this.format(Math.max(0, ...this.data[series + 1].filter((value) => value !== null)))}`);
    this.place.setAttribute("aria-label", `Chart: ${this.title}. At ${this.when.textContent}: ${most.join("; ")}`);
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || this.plot === null) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    this.at = Math.max(0, Math.min(last, (this.at ?? last) + step));
    this.legend.setAttribute("aria-live", "polite");
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][this.at], "x"), top: 10 });
  }

  leave() {
    this.at = undefined;
    this.legend.removeAttribute("aria-live");
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  fit() {
    const width = this.place.clientWidth;
    if (width === 0) return;
    if (this.plot === null) this.make();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  /** With the colours of the theme. */
  repaint() {
    this.plot?.destroy();
    this.plot = null;
    this.make();
  }

  end() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}
