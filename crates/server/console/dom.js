// Elements, tables and numbers. Whatever comes from outside goes in as text.

/** An element: attributes, then children, of which strings become text and nothing is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** Sets the text of an element if it differs, so that selections and screen readers are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(value < 1 ? 2 : 1);
  return Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export const perSecond = (format) => (value) => {
  const text = format(value);
  return text === "–" ? text : `${text}/s`;
};

export function ms(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 1000) return duration(value / 1000);
  return value >= 10 ? `${value.toFixed(0)} ms` : `${value.toFixed(2)} ms`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function ago(milliseconds, now) {
  if (!milliseconds) return "never";
  return `${duration(Math.max(0, (now - milliseconds) / 1000))} ago`;
}

export const dollars = (value) => (value === null || value === undefined ? "–" : `$${value.toFixed(value === 0 || value >= 1 ? 2 : 6)}`);

/** Tiles of one big number each: a list whose values are set by name. */
export function tiles(names) {
  const values = names.map(() => h("dd"));
  const list = h("dl", { class: "tiles" }, names.map((name, index) => h("div", { class: "tile" }, h("dt", {}, name), values[index])));
  const set = (texts) => texts.forEach((text, index) => {
    const [large, small] = Array.isArray(text) ? text : [text];
    const before = values[index];
    if (before.dataset.large === large && before.dataset.small === (small ?? "")) return;
    before.dataset.large = large;
    before.dataset.small = small ?? "";
    before.replaceChildren(large, ...(small ? [h("small", {}, small)] : []));
  });
  return { element: list, set };
}

/** Pairs of a name and a value. */
export function facts() {
  const element = h("dl", { class: "facts" });
  let shown = "";
  const set = (pairs) => {
    const kept = pairs.filter(([, value]) => value !== undefined && value !== null);
    const key = JSON.stringify(kept);
    if (key === shown) return;
    shown = key;
    element.replaceChildren(...kept.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
  };
  return { element, set };
}

/** A table that keeps its rows: a cell is text, or an element. */
export function table(caption, columns, none) {
  const body = h("tbody");
  const head = h("tr", {}, columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)));
  const empty = h("p", { class: "quiet" }, `${caption}: ${none ?? "none"}`);
  const whole = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { "aria-label": caption }, h("thead", {}, head), body));
  // Outside of what is scrolled, so that it has the width of the screen.
  const title = h("p", { class: "quiet" }, caption);
  const element = h("div", {}, title, whole, empty);
  const set = (rows) => {
    whole.hidden = rows.length === 0;
    title.hidden = rows.length === 0;
    empty.hidden = rows.length > 0;
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, at) => {
      const shown = body.rows[at] ?? body.insertRow();
      row.forEach((cell, column) => {
        const place = shown.cells[column] ?? shown.appendChild(h("td", { class: columns[column][1] }));
        if (cell instanceof Node) { if (place.firstChild !== cell) place.replaceChildren(cell); } else say(place, String(cell ?? "–"));
      });
    });
  };
  set([]);
  return { element, set };
}

/** How much of a whole is taken; red when it is nearly all, unless that says nothing. */
export function meter(label, isRed = true) {
  const element = h("progress", { class: "meter", max: "100", value: "0", "aria-label": label });
  const set = (part, whole) => {
    const percent = whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
    element.value = percent;
    element.classList.toggle("full", isRed && percent >= 95);
  };
  return { element, set };
}

/** A line of the last values, for a cell. The number beside it says what matters. */
export function spark() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 22");
  svg.setAttribute("aria-hidden", "true");
  const path = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  const set = (values, most) => {
    const step = 120 / Math.max(1, values.length - 1);
    const point = (value, at) => `${at === 0 ? "M" : "L"}${(at * step).toFixed(1)} ${(21 - 20 * Math.min(1, (value ?? 0) / (most || 1))).toFixed(1)}`;
    path.setAttribute("d", values.map(point).join(""));
  };
  return { element: svg, set };
}

export function card(title, ...children) {
  return h("section", { class: "card" }, h("h3", {}, title), ...children);
}
