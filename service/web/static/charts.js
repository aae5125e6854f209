// The frames of a job's page: each draws the curves of its metrics; all share the zoom and the marks.

import { CurveStore, smoothed } from "./curves.js";
import { number, wallClock } from "./format.js";
import { byId, make, setText } from "./page.js";
import { colour, curveColour, draw, onTheme, plotly } from "./plotly.js";

const PAUSE = 150; // milliseconds between two drawings, or twice what the last one took

export class Charts {
  /** `charts` as the server tells them (service/web/charts.py); `store` holds the points. */
  constructor(charts, store) {
    this.store = store;
    this.charts = new Map(charts.map((chart) => [chart.id, chart]));
    this.view = { axis: "step", log: false, weight: 0, range: null };
    this.marks = { checkpoint: [], resumed: [], interrupted: [] }; // each a step, where it is known, and a time
    this.zoomed = null;
    this.seen = new Set();
    this.dirty = new Set();
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.sight(entry)), { rootMargin: "300px 0px" });
    for (const id of this.charts.keys()) this.watch(id);
    onTheme(() => this.redraw());
    plotly().then(() => this.redraw());
  }

  /** Something of these metrics changed; without keys, everything. */
  redraw(keys = null) {
    for (const [id, chart] of this.charts) {
      if (keys && !keys.some((key) => belongs(chart, key))) continue;
      this.dirty.add(id);
      const nothing = this.frame(id).querySelector(".nothing");
      if (nothing && this.curves(chart).some(([, series]) => series.steps.length)) nothing.textContent = "";
    }
    this.schedule();
  }

  /** Another axis, scale or smoothing. */
  look(change) {
    Object.assign(this.view, change);
    if ("axis" in change) this.zoom(null);
    this.redraw();
  }

  /** Points of the stream, for the finer curves of a zoom; those of the whole are in the store. */
  grow(told) {
    this.zoomed?.add(told);
  }

  mark(marks) {
    Object.assign(this.marks, marks);
    this.redraw();
  }

  /** Frames for metrics that no frame shows yet. */
  adopt() {
    for (const key of [...this.store.series.keys()].sort()) {
      if (HIDDEN.has(key) || [...this.charts.values()].some((chart) => belongs(chart, key))) continue;
      const chart = { id: `own-${this.charts.size}`, title: key, keys: [key], unit: "", scale: 1, note: "" };
      byId("charts").append(make("figure", { class: "card chart", id: `chart-${chart.id}` },
        make("figcaption", {}, make("span", { text: key }), make("output")), make("div", { class: "frame" })));
      this.charts.set(chart.id, chart);
      this.watch(chart.id);
      this.dirty.add(chart.id);
    }
    this.schedule();
  }

  watch(id) {
    this.watcher.observe(this.frame(id));
  }

  frame(id) {
    return byId(`chart-${id}`).querySelector(".frame");
  }

  sight(entry) {
    const id = entry.target.parentElement.id.slice("chart-".length);
    if (entry.isIntersecting) this.seen.add(id); else this.seen.delete(id);
    this.schedule();
  }

  schedule() {
    this.waiting ??= setTimeout(async () => {
      const began = performance.now();
      const ids = [...this.dirty].filter((id) => this.seen.has(id));
      for (const id of ids) { this.dirty.delete(id); await this.drawOne(id); await breath(); }
      const took = performance.now() - began;
      setTimeout(() => { this.waiting = undefined; if ([...this.dirty].some((id) => this.seen.has(id))) this.schedule(); }, Math.min(400, took * 2));
    }, PAUSE);
  }

  async drawOne(id) {
    const chart = this.charts.get(id);
    const found = this.curves(chart);
    if (!(this.zoomed ?? this.store).whole || !found.some(([, series]) => series.steps.length)) return;
    const frame = this.frame(id);
    const many = found.length > 6;
    const traces = found.flatMap(([key, series], n) => this.traces(chart, key, series, n, many && found));
    await draw(frame, traces, {
      xaxis: { type: this.view.axis === "time" ? "date" : "linear", ...(this.view.range ? { range: this.view.range, autorange: false } : { autorange: true }) },
      yaxis: { type: this.view.log ? "log" : "linear", ...heights(traces, this.view) },
      shapes: this.shapes(),
      showlegend: found.length > 1 && !many,
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 11 } },
      margin: { l: 52, r: 8, t: found.length > 1 && !many ? 24 : 6, b: this.view.axis === "time" ? 38 : 26 }, // below times stands their day
    });
    this.listen(frame);
    this.say(id, chart, found);
  }

  /** The curves of a frame, in the order of its keys; zoomed in, the finer ones. */
  curves(chart) {
    const store = this.zoomed ?? this.store;
    const keys = [...this.store.series.keys()].filter((key) => belongs(chart, key));
    const place = (key) => chart.keys.indexOf(key);
    keys.sort((a, b) => place(a) - place(b) || a.localeCompare(b, undefined, { numeric: true }));
    return keys.map((key) => [key, store.series.get(key) ?? { steps: [], values: [], times: [] }]);
  }

  traces(chart, key, series, n, many) {
    // Copies: what Plotly holds is what it has drawn, while the store goes on.
    const x = this.view.axis === "time" ? series.times.map(wallClock) : series.steps.slice();
    const values = series.values.map((value) => value * chart.scale);
    const shown = many ? (key === slowest(many) ? "c2" : "line") : null;
    const line = { color: shown ? colour(shown) : curveColour(n), width: series.steps.length > 500 ? 1.1 : 1.6 };
    const name = label(key, chart);
    const few = series.steps.length < 3 || (key.startsWith("eval/") && series.steps.length < 40);
    const one = { x, y: values, name, type: "scatter", mode: few ? "lines+markers" : "lines", marker: { size: 5 }, line, hovertemplate: "%{y:.4~g}" };
    if (!this.view.weight || few) return [one];
    return [
      { ...one, opacity: 0.25, hoverinfo: "skip", hovertemplate: undefined, showlegend: false },
      { ...one, y: smoothed(values, this.view.weight, this.view) },
    ];
  }

  shapes() {
    const place = ({ step, time }) => (this.view.axis === "time" ? wallClock(time) : step);
    const lines = (marks, style) => marks.slice(-100).map(place).filter((x) => x !== null && x !== undefined)
      .map((x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", layer: "below", line: style }));
    return [
      ...lines(this.marks.checkpoint, { color: colour("soft"), width: 1, dash: "dot" }),
      ...lines(this.marks.resumed, { color: colour("c2"), width: 1.5 }),
      ...lines(this.marks.interrupted, { color: colour("bad"), width: 2, dash: "dash" }),
    ];
  }

  /** The newest value beside the title; of ranks, the slow one. */
  say(id, chart, found) {
    const output = byId(`chart-${id}`).querySelector("output");
    if (id === "ranks") { setText(output, slowWords(found)); return; }
    const [, series] = found[0];
    const last = series.values.at(-1);
    setText(output, last === undefined ? "" : number(last * chart.scale));
  }

  // -- zoom ----------------------------------------------------------------------------------------------------------

  listen(frame) {
    if (frame.dataset.listens) return;
    frame.dataset.listens = "yes";
    frame.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined) this.zoom(range);
    });
    frame.on("plotly_doubleclick", () => this.zoom(null));
  }

  /** All frames show this range, in finer points where there are any; null: everything. */
  async zoom(range) {
    this.view.range = range;
    this.zoomed = null;
    byId("whole").hidden = range === null;
    this.redraw();
    if (!range || this.view.axis !== "step" || !this.store.truncated) return;
    const steps = [Math.max(0, Math.floor(range[0])), Math.max(0, Math.ceil(range[1]))];
    const finer = await new CurveStore(this.store.jobId, this.store.execution).load(steps).catch(() => null);
    if (finer && this.view.range === range) { this.zoomed = finer; this.redraw(); }
  }
}

/** Between two frames, what came meanwhile has its turn: events of the stream, and the reader's. */
const breath = () => new Promise((resolve) => setTimeout(resolve));

/**
 * How high a frame is: as its curves are in the range that is looked at. A curve that does not move is drawn in the
 * middle of a frame that says how high it is.
 */
function heights(traces, { range, axis, log }) {
  const place = axis === "time" ? Date.parse : Number;
  const [from, to] = range ? range.map(place) : [-Infinity, Infinity];
  let [low, high] = [Infinity, -Infinity];
  for (const { x, y } of traces) {
    y.forEach((value, i) => {
      if (!Number.isFinite(value) || (log && value <= 0) || (range && (place(x[i]) < from || place(x[i]) > to))) return;
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    });
  }
  if (!Number.isFinite(low)) return { autorange: true };
  const still = high - low <= Math.abs(high) * 1e-9;
  if (log) return range && !still ? { autorange: false, range: padded(Math.log10(low), Math.log10(high)) } : { autorange: true };
  if (!still) return range ? { autorange: false, range: padded(low, high) } : { autorange: true };
  const room = Math.abs(high) / 2 || 1;
  return { autorange: false, range: [low - room, high + room] };
}

const padded = (low, high) => [low - (high - low) / 20, high + (high - low) / 20];

const HIDDEN = new Set(["perf/examples_per_second", "perf/tokens_per_second", "perf/rank_spread_seconds"]);

const belongs = (chart, key) => chart.keys.some((one) => (one.endsWith("/") ? key.startsWith(one) : key === one));

const label = (key, chart) => (chart.keys.some((one) => one.endsWith("/")) ? `rank ${key.split("/").at(-1)}` : key.split("/").at(-1).replace(/_(bytes|seconds)$/, "").replaceAll("_", " ")) + (key.startsWith("eval/") ? " (eval)" : "");

const lastOf = ([, series]) => series.values.at(-1) ?? -Infinity;

const slowest = (found) => found.reduce((one, other) => (lastOf(other) > lastOf(one) ? other : one))[0];

function slowWords(found) {
  if (found.length < 2) return "";
  const times = found.map(lastOf).sort((a, b) => a - b);
  const [key, behind] = [slowest(found), times.at(-1) - times[Math.floor((times.length - 1) / 2)]];
  return `slowest: rank ${key.split("/").at(-1)}, +${number(behind * 1000, 3)} ms`;
}
