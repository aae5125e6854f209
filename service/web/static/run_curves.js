// The curves of several runs: for each metric one chart with a curve for each run. Metrics are read when they are drawn.

import { call, query } from "./api.js";
import { chartOf, combinedCharts } from "./chart_list.js";
import { colour, curveStyle } from "./colours.js";
import { asNumber, number } from "./format.js";
import { LOADING } from "./chart_grid.js";
import { RESTING } from "./job_status.js";
import { meanCurve } from "./run_groups.js";

const RUNS_PER_REQUEST = 20; // the limit of the API
const MANY_RUNS = 50; // the curves of more runs are thin: easier to tell apart, and faster to draw
const MAX_DOTS = 800; // in a chart; more would hide its lines, and take longer to draw
export const SELECTED = "Selected metric";
/** @type {Axis[]} */
export const AXES = ["step", "seconds", "tokens"];
/** The metric that a run with an axis of tokens reports. */
export const TOKENS = "train/tokens";
/** @type {Record<string, string>} */
const API_AXES = { step: "", seconds: "time", tokens: "tokens" };

export class RunCurves {
  /**
   * `runs` are `{ id, name, status, tokens }`, `tokens` telling whether a run has counted any. `view` has the axis and `key`, the selected metric; `loaded(keys)` is called when curves have arrived or were refused, `failed(error)`
   * when the service has refused some.
   *
   * @param {Pick<Run, "id" | "name" | "status" | "tokens">[]} runs
   * @param {ChartsView & { key?: string | null }} view
   * @param {{ loaded: (keys: string[]) => void, failed: (error: Error) => void }} calls
   */
  constructor(runs, view, { loaded, failed }) {
    this.runs = runs;
    this.view = view;
    this.loaded = loaded;
    this.failed = failed;
    /** @type {string[]} */
    this.keys = [];
    /** @type {string | null} */
    this.highlighted = null;
    /** @type {Set<string>} the ids of runs that the reader hides. */
    this.hidden = new Set();
    /** @type {((run: { id: string }) => string) | null} the group of a run, of which the mean is drawn. */
    this.group = null;
    /** @type {Set<string> | null} the ids of the runs that pass the filters of the page; null: all. */
    this.passing = null;
    this.loadedAxis = AXES[0];
    /** @type {Map<string, Map<string, { x: number[], y: number[] }>>} */
    this.curves = new Map();
    /** @type {Map<string, Map<string, Status | undefined>>} */
    this.statuses = new Map();
    /** @type {Set<string>} */
    this.reading = new Set();
    /** @type {Set<string>} */
    this.stale = new Set();
    /** @type {Set<string>} */
    this.refused = new Set();
  }

  /** The axes that all runs have. */
  axes() {
    return AXES.filter((axis) => axis !== "tokens" || this.runs.every(({ tokens }) => tokens));
  }

  /**
   * The curve of a run: `{ x, y }`; undefined if it is not loaded or has no points.
   *
   * @param {{ id: string }} run
   * @param {string} key
   */
  curveOf(run, key) {
    return this.curves.get(this.name(key))?.get(run.id);
  }

  /** @param {string} key */
  name(key) {
    return `${this.view.axis} ${key}`;
  }

  /**
   * Read the selected metric again, and each other one when it is drawn next: of a sweep of 200 runs, all take minutes.
   *
   * @returns {Promise<boolean>} whether any curve may have changed.
   */
  async reload() {
    this.refused.clear();
    this.stale = new Set([...this.curves.keys()].filter((name) => this.runsToRead(name).length));
    const isChanged = this.stale.size > 0;
    if (this.view.key) await this.load(this.view.key);
    return isChanged;
  }

  /**
   * The runs whose curve of this name may differ from the one that was read.
   *
   * @param {string} name
   */
  runsToRead(name) {
    const statuses = this.statuses.get(name);
    return statuses
      ? this.runs.filter((run) => !RESTING.has(run.status) || run.status !== statuses.get(run.id))
      : this.runs;
  }

  /**
   * Read a metric unless it is known, being read, or refused.
   *
   * @param {string} key
   */
  async load(key) {
    const name = this.name(key);
    if (this.reading.has(name) || this.refused.has(name) || (this.curves.has(name) && !this.stale.has(name))) return;
    this.reading.add(name);
    this.stale.delete(name);
    const { axis } = this.view;
    const runs = this.runsToRead(name);
    const statuses = new Map(this.runs.map((run) => [run.id, run.status]));
    const curves = new Map(this.curves.get(name));
    const max_points = this.runs.length > RUNS_PER_REQUEST ? 400 : 2000;
    try {
      for (let first = 0; first < runs.length; first += RUNS_PER_REQUEST) {
        const job = runs.slice(first, first + RUNS_PER_REQUEST).map((run) => run.id);
        const answer = await call(`/v1/metrics${query({ job, key, x: API_AXES[axis], max_points })}`);
        for (const one of answer.data) {
          const [curve] = one.series;
          curves.delete(one.job_id);
          if (curve?.steps.length)
            curves.set(one.job_id, { x: axis === "step" ? curve.steps : curve.x, y: curve.values.map(asNumber) });
        }
      }
    } catch (error) {
      this.refused.add(name);
      if (axis === this.view.axis) this.failed(error);
      this.loaded([key]);
      return;
    } finally {
      this.reading.delete(name);
    }
    this.curves.set(name, curves);
    this.statuses.set(name, statuses);
    if (axis === this.view.axis) this.loadedAxis = axis;
    this.loaded([key]);
  }

  // -- the source of the grid ------------------------------------------------------------------------------------------

  subject() {
    return this.runs.length > 2 ? `${this.runs.length} runs` : this.runs.map((run) => run.name).join(" ");
  }

  /** @returns {ChartDefinition[]} */
  charts() {
    const selected = this.view.key ? [{ ...chartOf(this.view.key), id: "selected", section: SELECTED }] : [];
    return [...selected, ...combinedCharts(this.view.combined), ...this.keys.map(chartOf)];
  }

  /**
   * @param {ChartDefinition} chart
   * @returns {Curve[] | null}
   */
  curvesOf(chart) {
    for (const key of chart.keys) this.load(key);
    if (chart.keys.some((key) => !this.curves.has(this.name(key)))) return null;
    if (this.group) return chart.keys.flatMap((key) => this.groupCurves(chart, key));
    return chart.keys.flatMap((key) =>
      this.runs.flatMap((run, n) => (this.isShown(run) ? (this.curve(chart, key, run, n) ?? []) : [])),
    );
  }

  /** The groups of all runs, in the order of their first runs. */
  groups() {
    return this.group ? [...Map.groupBy(this.runs, this.group)] : [];
  }

  /**
   * The mean of the shown runs of each group.
   *
   * @param {ChartDefinition} chart
   * @param {string} key
   * @returns {Curve[]}
   */
  groupCurves(chart, key) {
    const groups = this.groups();
    return groups.flatMap(([label, runs], n) => {
      const curves = runs.filter((run) => this.isShown(run)).flatMap((run) => this.curveOf(run, key) ?? []);
      if (!curves.length) return [];
      const isFaded = this.highlighted !== null && !runs.some(({ id }) => id === this.highlighted);
      const name = `${label} (${curves.length} ${curves.length === 1 ? "run" : "runs"})`;
      return {
        key,
        ...meanCurve(curves),
        name: chart.keys.length > 1 ? `${name} ${key}` : name,
        dots: curves.every(({ x }) => x.length < 3),
        ...curveStyle(n),
        ...(isFaded && { colour: colour("line") }),
        width: 1.8,
      };
    });
  }

  /** @param {{ id: string }} run */
  isShown({ id }) {
    return !this.hidden.has(id) && (this.passing === null || this.passing.has(id));
  }

  /**
   * The value of a run's curve at a position, or the last one before it; the last one of all without a position.
   *
   * @param {{ id: string }} run
   * @param {string} key
   * @param {number | null} position
   */
  valueAt(run, key, position) {
    const { x, y } = this.curveOf(run, key) ?? { x: [], y: [] };
    return position === null ? y.at(-1) : y[x.findLastIndex((one) => one <= position)];
  }

  /** @param {Pick<ChartDefinition, "keys">} chart */
  absenceOf({ keys }) {
    if (this.runs.length && !this.runs.some((run) => this.isShown(run))) return "All runs are hidden";
    const names = keys.map((key) => this.name(key));
    if (names.some((name) => this.refused.has(name))) return "The points could not be read";
    if (names.some((name) => !this.curves.has(name))) return LOADING;
    return this.runs.every((run) => RESTING.has(run.status)) ? "No points" : "No points yet";
  }

  /**
   * @param {ChartDefinition} chart
   * @param {string} key
   * @param {{ id: string, name: string }} run
   * @param {number} n
   * @returns {Curve | null}
   */
  curve(chart, key, run, n) {
    const curve = this.curveOf(run, key);
    if (!curve?.x.length) return null;
    const isFaded = this.highlighted !== null && this.highlighted !== run.id;
    return {
      key,
      run: run.id,
      x: curve.x,
      y: curve.y,
      name: chart.keys.length > 1 ? `${run.name} ${key}` : run.name,
      dots: curve.x.length < 3 || (key.startsWith("eval/") && curve.x.length * this.runs.length <= MAX_DOTS),
      ...curveStyle(n),
      ...(isFaded && { colour: colour("line") }),
      width: this.highlighted === run.id ? 2.6 : this.runs.length > MANY_RUNS ? 1 : 1.6,
    };
  }

  /** @returns {Mark[]} */
  marks() {
    return [];
  }

  /**
   * The smallest and the largest last value.
   *
   * @param {ChartDefinition} chart
   * @param {Curve[]} curves
   */
  newestOf(chart, curves) {
    const values = curves.map(({ y }) => y.at(-1)).filter(Number.isFinite);
    if (!values.length) return "";
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return low === high ? number(low) : `${number(low)} to ${number(high)}`;
  }
}
