// The charts of a job's page: the curves of its metrics over steps, epochs, tokens or time, and its marks.

import { chartsOf, COMBINED, combinedCharts, includes } from "./chart_list.js";
import { ChartGrid, LOADING, PINNED } from "./chart_grid.js";
import { nearestPoint } from "./chart_axes.js";
import { readView } from "./chart_view.js";
import { colour, curveStyle } from "./colours.js";
import { CurveStore } from "./curves.js";
import { number } from "./format.js";
import { TERMINAL } from "./job_status.js";
import { byId } from "./page.js";
import { atSteps, isSystem, SYSTEM, systemName } from "./system_charts.js";

const TOKENS = "train/tokens";
const MANY = 6; // curves of a chart, beyond which only the slowest has a colour
const HEADLINES = 3;
/** @type {Axis[]} */
export const AXES = ["step", "epoch", "tokens", "relative", "time"];

/** The rows of charts that fit in two screens, beside the bar, the tools, closed sections, and media below them. */
function maxRows() {
  const hasMediaBelow = innerWidth < 1100 && byId("workspace").matches(".with-media");
  return Math.floor((2 * innerHeight - 500 - (hasMediaBelow ? 350 : 0)) / 300);
}

/**
 * @param {string} name
 * @param {number} before
 * @param {number} rows
 */
const isOpenAtFirst = (name, before, rows) =>
  [PINNED, COMBINED].includes(name) || before === 0 || (name !== SYSTEM && before + rows <= maxRows());

/**
 * Whether a chart has one of the reported metrics.
 *
 * @param {ChartDefinition} chart
 * @param {string[]} keys
 */
const isReported = (chart, keys) => keys.some((key) => includes(chart, key));

export class Charts {
  /**
   * @param {Job} job
   * @param {CurveStore} store has the points.
   */
  constructor(job, store) {
    this.job = job;
    this.store = store;
    /** @type {CurveStore | null} */
    this.zoomed = null;
    /** @type {Points | null} */
    this.preview = null;
    /** @type {Record<MarkKind, StepMark[]>} */
    this.marked = { checkpoint: [], resumed: [], interrupted: [] };
    this.view = readView(new URLSearchParams(location.search), AXES);
    this.grid = new ChartGrid(byId("charts"), this.view, this, {
      onRange: () => this.showRange(),
      isOpen: isOpenAtFirst,
      headlinesOf: (definitions) => this.headlinesOf(definitions),
    });
    if (this.view.range) this.showRange();
  }

  // -- changes ---------------------------------------------------------------------------------------------------------

  /** @param {Job} job */
  setJob(job) {
    const hasEnded = TERMINAL.has(job.status) && !TERMINAL.has(this.job.status);
    this.job = job;
    if (hasEnded) this.redraw(); // charts without points expect none any more
  }

  /** Add charts for the metrics of the store that no chart shows yet. */
  addMissing() {
    this.grid.refresh();
  }

  /**
   * Show only the charts that matter most, or all.
   *
   * @param {boolean} isHeadline
   */
  setHeadline(isHeadline) {
    this.grid.setHeadline(isHeadline);
  }

  /** @param {string[] | null} keys */
  redraw(keys = null) {
    this.grid.redraw(keys);
  }

  /** Show the curves that were read; until then it is not known whether a zoom needs finer ones. */
  showLoaded() {
    this.addMissing();
    if (this.view.range && !this.zoomed) this.showRange();
    else this.redraw();
  }

  /**
   * Show a curve of the loss until the store has one.
   *
   * @param {{ steps: number[], values: (number | string)[] }} curve
   */
  showPreview({ steps, values }) {
    this.preview = { steps, values: values.map(Number), times: [] };
    this.redraw();
  }

  /**
   * Change the axis, the scale, the smoothing or what is shown.
   *
   * @param {Partial<ChartsView>} values
   */
  change(values) {
    if ("axis" in values) {
      values.range = null;
      this.zoomed = null;
    }
    this.grid.change(values);
    if ("axis" in values) this.showRange();
  }

  /**
   * Add points of the stream to the finer curves of a zoom; the store of the whole curves gets them elsewhere.
   *
   * @param {MetricsReport} report
   */
  addPoints(report) {
    this.zoomed?.add(report);
  }

  /** @param {Partial<Record<MarkKind, StepMark[]>>} marks */
  setMarks(marks) {
    Object.assign(this.marked, marks);
    this.redraw();
  }

  /** Read finer points for the range of the view if the curves are downsampled. */
  async showRange() {
    const { range, axis } = this.view;
    this.zoomed = null;
    byId("reset-zoom").hidden = range === null;
    this.redraw();
    if (!range || axis !== "step" || !this.store.truncated) return;
    /** @type {Extent} */
    const steps = [Math.max(0, Math.floor(range[0])), Math.max(0, Math.ceil(range[1]))];
    const finer = await new CurveStore(this.store.jobId, this.store.execution, this.store.resumedFrom)
      .load(steps)
      .catch(() => null);
    if (finer && this.view.range === range) {
      this.zoomed = finer;
      this.redraw();
    }
  }

  // -- the source of the grid ------------------------------------------------------------------------------------------

  subject() {
    return this.job.name;
  }

  charts() {
    const keys = [...new Set([...Object.keys(this.job.metrics), ...this.store.series.keys()])];
    const charts = chartsOf(this.job.spec, keys);
    // A standard chart waits for the points of a job that runs; without any, nothing will ever be in it.
    const isDecided = TERMINAL.has(this.job.status) && (this.store.isRead || this.job.metrics_omitted === 0);
    const expected = isDecided ? charts.filter((one) => isReported(one, keys)) : charts;
    return [...combinedCharts(this.view.combined), ...expected];
  }

  /**
   * The charts of an overview: pinned ones, then those of the loss and of the evaluations, then the others in their order.
   *
   * @param {ChartDefinition[]} definitions
   */
  headlinesOf(definitions) {
    const wanted = ["train/loss", this.job.loss_metric, this.job.evaluation_metric].filter((key) => key !== null);
    const rank = (/** @type {ChartDefinition} */ one) => {
      if (this.view.pins.includes(one.id)) return -1;
      const at = wanted.findIndex((key) => includes(one, key));
      return at < 0 ? wanted.length : at;
    };
    return definitions.toSorted((one, other) => rank(one) - rank(other)).slice(0, HEADLINES);
  }

  /**
   * @param {ChartDefinition} chart
   * @returns {Curve[]}
   */
  curvesOf(chart) {
    let series = (this.zoomed ?? this.store).complete ? this.seriesOf(chart) : [];
    if (!series.length && chart.id === "loss" && this.preview && this.view.axis === "step")
      series = [["train/loss", this.preview]];
    const slowest = series.length > MANY ? slowestKey(series) : null;
    return series.flatMap(([key, one], n) => this.curve(chart, key, one, n, slowest) ?? []);
  }

  /** @param {ChartDefinition} chart */
  absenceOf(chart) {
    if (!this.store.complete) return LOADING;
    if (!this.store.isRead) return "The points could not be read";
    if (this.seriesOf(chart).some(([, { steps }]) => steps.length)) return "No points on this axis";
    if (this.zoomed) return "No points in this range";
    return TERMINAL.has(this.job.status) ? "No points" : "No points yet";
  }

  /**
   * The series of a chart in the order of its keys; if zoomed in, the finer ones.
   *
   * @param {ChartDefinition} chart
   * @returns {[string, Points][]}
   */
  seriesOf(chart) {
    // Finer points are those of a range of steps, which the metrics of the system do not have.
    const { series } = chart.section === SYSTEM ? this.store : (this.zoomed ?? this.store);
    const shown = [...series].filter(([key]) => includes(chart, key));
    const position = (/** @type {string} */ key) => chart.keys.indexOf(key);
    return shown.sort(([a], [b]) => position(a) - position(b) || a.localeCompare(b, undefined, { numeric: true }));
  }

  /**
   * @param {ChartDefinition} chart
   * @param {string} key
   * @param {Points} series
   * @param {number} n
   * @param {string | null} slowest
   */
  curve(chart, key, series, n, slowest) {
    const x = this.positions(isSystem(key) ? atSteps(series, this.reference()) : series);
    if (!x) return null;
    const few = series.steps.length < 3 || (key.startsWith("eval/") && series.steps.length < 40);
    return {
      // Copies, since a curve is drawn again while the store changes.
      key,
      x,
      name: curveName(key, chart),
      y: series.values.map((value) => value * chart.scale),
      dots: few,
      ...(slowest === null ? curveStyle(n) : { colour: colour(key === slowest ? "c2" : "line") }),
      width: series.steps.length > 500 ? 1.1 : 1.6,
    };
  }

  /**
   * The positions of a series on the axis of the view; null if the job has no such axis.
   *
   * @param {Points} series
   */
  positions({ steps, times }) {
    if (this.view.axis === "step") return steps.slice();
    if (this.view.axis === "time") return times.map((time) => Date.parse(time) / 1000);
    if (this.view.axis === "relative") {
      const start = this.startTime();
      return times.map((time) => Date.parse(time) / 1000 - start);
    }
    const position = this.view.axis === "epoch" ? this.epochOf() : this.tokensOf();
    return position && steps.map(position);
  }

  /** The series that tells when the training reached a step; undefined if nothing of the training was reported. */
  reference() {
    const { series } = this.store;
    return series.get("train/loss") ?? [...series].find(([key]) => !isSystem(key))?.[1];
  }

  /** The time of the first point in seconds. */
  startTime() {
    const first = [...this.store.series.values()].map(({ times }) => Date.parse(times[0])).filter(Number.isFinite);
    return first.length ? Math.min(...first) / 1000 : 0;
  }

  epochOf() {
    const { progress, spec } = this.job;
    if (!progress?.total_steps || !spec.epochs) return null;
    const steps = progress.total_steps / spec.epochs;
    return (/** @type {number} */ step) => step / steps;
  }

  /** A function from steps to tokens, which interpolates between the reported numbers. */
  tokensOf() {
    const series = this.store.series.get(TOKENS);
    if (!series?.steps.length) return null;
    const steps = [0, ...series.steps];
    const totals = [0, ...series.values];
    return (/** @type {number} */ step) => {
      const index = nearestPoint(steps, step);
      const [a, b] =
        steps[index] <= step && index < steps.length - 1
          ? [index, index + 1]
          : [Math.max(0, index - 1), Math.max(1, index)];
      return totals[a] + ((step - steps[a]) * (totals[b] - totals[a])) / (steps[b] - steps[a] || 1);
    };
  }

  /** The axes that the job has. */
  axes() {
    return AXES.filter(
      (axis) =>
        (axis !== "epoch" || this.job.spec.epochs) &&
        (axis !== "tokens" || this.job.spec.task === "causal_lm" || this.store.series.has(TOKENS)),
    );
  }

  /** @returns {Mark[]} */
  marks() {
    const kinds = /** @type {[MarkKind, StepMark[]][]} */ (Object.entries(this.marked));
    return kinds
      .flatMap(([kind, marks]) => marks.slice(-100).map((mark) => ({ kind, x: this.positionOfMark(mark) ?? NaN })))
      .filter(({ x }) => Number.isFinite(x));
  }

  /** @param {StepMark} mark */
  positionOfMark({ step, time }) {
    if (this.view.axis === "step") return step;
    if (this.view.axis === "time") return Date.parse(time ?? "") / 1000;
    if (this.view.axis === "relative") return Date.parse(time ?? "") / 1000 - this.startTime();
    const position = this.view.axis === "epoch" ? this.epochOf() : this.tokensOf();
    return step === null || !position ? null : position(step);
  }

  /**
   * The newest value; for ranks, the slowest one.
   *
   * @param {ChartDefinition} chart
   * @param {Curve[]} curves
   */
  newestOf(chart, curves) {
    if (chart.id === "ranks") return slowestText(this.seriesOf(chart));
    const last = curves[0].y.at(-1);
    return last === undefined ? "" : number(last);
  }
}

/**
 * The name of a curve: `rank 3`, `loss (eval)`, `data`, or the name of an evaluation set.
 *
 * @param {string} key
 * @param {ChartDefinition} chart
 */
function curveName(key, chart) {
  const last = key.split("/").at(-1);
  if (chart.prefix) return key.startsWith("perf/rank_seconds/") ? `rank ${last}` : last;
  if (chart.section === SYSTEM) return systemName(key);
  if (chart.section === COMBINED) return key;
  const name = last.replace(/_(bytes|seconds)$/, "").replaceAll("_", " ");
  return name + (key.startsWith("eval/") ? " (eval)" : "");
}

/** @param {[string, Points]} entry */
const lastValue = ([, series]) => series.values.at(-1) ?? -Infinity;

/** @param {[string, Points][]} series */
const slowestKey = (series) => series.reduce((one, other) => (lastValue(other) > lastValue(one) ? other : one))[0];

/**
 * The slowest rank, and by how much its last step was slower than the median.
 *
 * @param {[string, Points][]} series
 */
function slowestText(series) {
  if (series.length < 2) return "";
  const times = series.map(lastValue).sort((a, b) => a - b);
  const delay = times.at(-1) - times[Math.floor((times.length - 1) / 2)];
  return `slowest: rank ${slowestKey(series).split("/").at(-1)}, +${number(delay * 1000, 3)} ms`;
}
