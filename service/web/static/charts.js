// The charts of a job's page. Each draws the curves of its metrics; all share the zoom and the marks.

import { chartsOf, includes } from "./chart_list.js";
import { showPreview } from "./curve_preview.js";
import { CurveStore, smoothed } from "./curves.js";
import { localTime, number } from "./format.js";
import { byId, make, setText } from "./page.js";
import { colour, curveColour, draw, onThemeChange, plotly } from "./plotly.js";

const DRAW_INTERVAL = 150; // milliseconds, extended after a slow drawing

export class Charts {
  /** `job` is a job of the API; `store` has the points. */
  constructor(job, store) {
    this.spec = job.spec;
    this.store = store;
    this.charts = new Map();
    this.view = { axis: "step", log: false, weight: 0, range: null };
    this.marks = { checkpoint: [], resumed: [], interrupted: [] }; // each a step, null if unknown, and a time
    this.zoomed = null;
    this.visible = new Set();
    this.dirty = new Set();
    this.observer = new IntersectionObserver((entries) => entries.forEach((entry) => this.setVisible(entry)), { rootMargin: "300px 0px" });
    this.addCharts(Object.keys(job.metrics));
    onThemeChange(() => this.redraw());
    plotly().then(() => this.redraw());
  }

  /** Add charts for the metrics of the store that no chart shows yet. */
  addMissing() {
    this.addCharts([...this.store.series.keys()]);
    this.schedule();
  }

  addCharts(keys) {
    for (const chart of chartsOf(this.spec, keys)) {
      if (this.charts.has(chart.id)) continue;
      const frame = make("div", { class: "frame" }, make("span", { class: "placeholder", text: "No points yet" }));
      byId("charts").append(make("figure", { class: "card chart", id: `chart-${chart.id}` },
        make("figcaption", {}, make("span", { text: chart.title }), chart.unit ? make("small", { text: chart.unit }) : null, make("output")),
        frame, chart.note ? make("p", { class: "hint", text: chart.note }) : null));
      this.charts.set(chart.id, chart);
      this.dirty.add(chart.id);
      this.observer.observe(frame);
    }
  }

  /** Show a curve as SVG until Plotly is loaded. */
  showPreview(id, { steps, values }) {
    if (this.charts.has(id)) showPreview(this.frameOf(id), [{ steps, values, colour: curveColour(0) }], `${this.charts.get(id).title} by step`);
  }

  /** Redraw the charts of these metrics, or all charts. */
  redraw(keys = null) {
    for (const [id, chart] of this.charts) {
      if (keys && !keys.some((key) => includes(chart, key))) continue;
      this.dirty.add(id);
      const placeholder = this.frameOf(id).querySelector(".placeholder");
      if (placeholder && this.curvesOf(chart).some(([, series]) => series.steps.length)) placeholder.textContent = "";
    }
    this.schedule();
  }

  /** Change the axis, the scale or the smoothing. */
  changeView(change) {
    Object.assign(this.view, change);
    if ("axis" in change) this.zoom(null);
    this.redraw();
  }

  /** Add points of the stream to the finer curves of a zoom; the store of the whole curves gets them elsewhere. */
  addPoints(report) {
    this.zoomed?.add(report);
  }

  setMarks(marks) {
    Object.assign(this.marks, marks);
    this.redraw();
  }

  frameOf(id) {
    return byId(`chart-${id}`).querySelector(".frame");
  }

  setVisible(entry) {
    const id = entry.target.parentElement.id.slice("chart-".length);
    if (entry.isIntersecting) this.visible.add(id); else this.visible.delete(id);
    this.schedule();
  }

  schedule() {
    this.timer ??= setTimeout(async () => {
      const start = performance.now();
      const ids = [...this.dirty].filter((id) => this.visible.has(id));
      for (const id of ids) { this.dirty.delete(id); await this.drawChart(id); await nextTask(); }
      const elapsed = performance.now() - start;
      setTimeout(() => { this.timer = undefined; if ([...this.dirty].some((id) => this.visible.has(id))) this.schedule(); }, Math.min(400, elapsed * 2));
    }, DRAW_INTERVAL);
  }

  async drawChart(id) {
    const chart = this.charts.get(id);
    const curves = this.curvesOf(chart);
    if (!(this.zoomed ?? this.store).complete || !curves.some(([, series]) => series.steps.length)) return;
    const frame = this.frameOf(id);
    const many = curves.length > 6;
    const traces = curves.flatMap(([key, series], n) => this.traces(chart, key, series, n, many && curves));
    const hasLegend = curves.length > 1 && !many;
    await draw(frame, traces, {
      xaxis: { type: this.view.axis === "time" ? "date" : "linear", ...(this.view.range ? { range: this.view.range, autorange: false } : { autorange: true }) },
      yaxis: { type: this.view.log ? "log" : "linear", ...valueRange(traces, this.view) },
      shapes: this.shapes(),
      showlegend: hasLegend,
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 11 } },
      margin: { l: 52, r: 8, t: hasLegend ? 24 : 6, b: this.view.axis === "time" ? 38 : 26 }, // times have a second line, the day
    });
    this.listen(frame);
    this.showNewest(id, chart, curves);
  }

  /** The curves of a chart in the order of its keys; if zoomed in, the finer ones. */
  curvesOf(chart) {
    const store = this.zoomed ?? this.store;
    const keys = [...store.series.keys()].filter((key) => includes(chart, key));
    const position = (key) => chart.keys.indexOf(key);
    keys.sort((a, b) => position(a) - position(b) || a.localeCompare(b, undefined, { numeric: true }));
    return keys.map((key) => [key, store.series.get(key)]);
  }

  /** The traces of a curve. `many` has all curves of a chart with more than six, of which only the slowest has a colour. */
  traces(chart, key, series, n, many) {
    // Copies, since Plotly keeps what it has drawn while the store changes.
    const x = this.view.axis === "time" ? series.times.map(localTime) : series.steps.slice();
    const values = series.values.map((value) => value * chart.scale);
    const shade = many ? colour(key === slowestKey(many) ? "c2" : "line") : curveColour(n);
    const line = { color: shade, width: series.steps.length > 500 ? 1.1 : 1.6 };
    const name = traceName(key, chart);
    const few = series.steps.length < 3 || (key.startsWith("eval/") && series.steps.length < 40);
    const trace = { x, y: values, name, type: "scatter", mode: few ? "lines+markers" : "lines", marker: { size: 5 }, line, hovertemplate: "%{y:.4~g}" };
    if (!this.view.weight || few) return [trace];
    return [
      { ...trace, opacity: 0.25, hoverinfo: "skip", hovertemplate: undefined, showlegend: false },
      { ...trace, y: smoothed(values, this.view.weight, this.view) },
    ];
  }

  shapes() {
    const position = ({ step, time }) => (this.view.axis === "time" ? localTime(time) : step);
    const lines = (marks, style) => marks.slice(-100).map(position).filter((x) => x !== null && x !== undefined)
      .map((x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", layer: "below", line: style }));
    return [
      ...lines(this.marks.checkpoint, { color: colour("soft"), width: 1, dash: "dot" }),
      ...lines(this.marks.resumed, { color: colour("c2"), width: 1.5 }),
      ...lines(this.marks.interrupted, { color: colour("bad"), width: 2, dash: "dash" }),
    ];
  }

  /** Show the newest value after the title; for ranks, the slowest one. */
  showNewest(id, chart, curves) {
    const output = byId(`chart-${id}`).querySelector("output");
    if (id === "ranks") { setText(output, slowestText(curves)); return; }
    const last = curves[0][1].values.at(-1);
    setText(output, last === undefined ? "" : number(last * chart.scale));
  }

  // -- zoom ------------------------------------------------------------------------------------------------------------

  listen(frame) {
    if (frame.dataset.listening) return;
    frame.dataset.listening = "yes";
    frame.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined) this.zoom(range);
    });
    frame.on("plotly_doubleclick", () => this.zoom(null));
  }

  /** Show a range in all charts, with finer points if the curves are downsampled; null shows everything. */
  async zoom(range) {
    this.view.range = range;
    this.zoomed = null;
    byId("reset-zoom").hidden = range === null;
    this.redraw();
    if (!range || this.view.axis !== "step" || !this.store.truncated) return;
    const steps = [Math.max(0, Math.floor(range[0])), Math.max(0, Math.ceil(range[1]))];
    const finer = await new CurveStore(this.store.jobId, this.store.execution, this.store.resumedFrom).load(steps).catch(() => null);
    if (finer && this.view.range === range) { this.zoomed = finer; this.redraw(); }
  }
}

/** Let pending events run between two drawings. */
const nextTask = () => new Promise((resolve) => setTimeout(resolve));

/**
 * The range of the value axis: that of the curves within the visible range of steps or times. A constant curve is in the
 * middle.
 */
function valueRange(traces, { range, axis, log }) {
  const position = axis === "time" ? Date.parse : Number;
  const [from, to] = range ? range.map(position) : [-Infinity, Infinity];
  let [low, high] = [Infinity, -Infinity];
  for (const { x, y } of traces) {
    y.forEach((value, i) => {
      if (!Number.isFinite(value) || (log && value <= 0) || (range && (position(x[i]) < from || position(x[i]) > to))) return;
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    });
  }
  if (!Number.isFinite(low)) return { autorange: true };
  const isConstant = high - low <= Math.abs(high) * 1e-9;
  if (log) return range && !isConstant ? { autorange: false, range: padded(Math.log10(low), Math.log10(high)) } : { autorange: true };
  if (!isConstant) return range ? { autorange: false, range: padded(low, high) } : { autorange: true };
  const margin = Math.abs(high) / 2 || 1;
  return { autorange: false, range: [low - margin, high + margin] };
}

const padded = (low, high) => [low - (high - low) / 20, high + (high - low) / 20];

/** The name of a curve in legends: `rank 3`, `loss (eval)`, `data`, or the name of an evaluation set. */
function traceName(key, chart) {
  const last = key.split("/").at(-1);
  if (chart.keys.some((prefix) => prefix.endsWith("/"))) return key.startsWith("perf/rank_seconds/") ? `rank ${last}` : last;
  const name = last.replace(/_(bytes|seconds)$/, "").replaceAll("_", " ");
  return name + (key.startsWith("eval/") ? " (eval)" : "");
}

const lastValue = ([, series]) => series.values.at(-1) ?? -Infinity;

const slowestKey = (curves) => curves.reduce((one, other) => (lastValue(other) > lastValue(one) ? other : one))[0];

/** The slowest rank, and by how much its last step was slower than the median. */
function slowestText(curves) {
  if (curves.length < 2) return "";
  const times = curves.map(lastValue).sort((a, b) => a - b);
  const delay = times.at(-1) - times[Math.floor((times.length - 1) / 2)];
  return `slowest: rank ${slowestKey(curves).split("/").at(-1)}, +${number(delay * 1000, 3)} ms`;
}
