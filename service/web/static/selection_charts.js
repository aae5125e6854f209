// The charts beside the table: the curves of the selected jobs.

import { ApiError, call } from "./api.js";
import { ChartGrid, PINNED } from "./chart_grid.js";
import { COMBINED } from "./chart_list.js";
import { connectChartTools, connectCombination } from "./chart_tools.js";
import { readView } from "./chart_view.js";
import { swatchOf } from "./colours.js";
import { byId, setText, toastError } from "./page.js";
import { AXES, RunCurves, TOKENS } from "./run_curves.js";

const OPEN_SECTIONS = 2;
export const MAX_CHARTED = 20;

export class SelectionCharts {
  constructor() {
    this.view = readView(new URLSearchParams(location.search), AXES);
    this.shown = ""; // the ids of the selected jobs
    /** @type {Map<string, string[]>} */
    this.metrics = new Map(); // the names of the metrics of each job
    this.curves = this.newCurves([]);
    /** @type {Partial<ChartsView>} */
    this.early = {}; // what was changed before the first charts were read
    const change = (/** @type {Partial<ChartsView>} */ values) => this.change(values);
    this.showAxes = connectChartTools(this.view, change, () => this.curves.axes());
    connectCombination(this.view, change, () => this.curves.keys);
  }

  /**
   * Curves of a selection; what arrives for an earlier one is not shown.
   *
   * @param {{ id: string, name: string, tokens?: boolean }[]} runs
   * @returns {RunCurves}
   */
  newCurves(runs) {
    const curves = new RunCurves(runs, this.view, {
      loaded: (keys) => {
        if (this.curves === curves) this.grid?.redraw(keys);
      },
      failed: (error) => {
        if (this.curves === curves) this.restoreAxis(error);
      },
    });
    return curves;
  }

  /**
   * The background of a sample of a selected job's curves; null if it has none.
   *
   * @param {string} id
   */
  colourOf(id) {
    const n = this.curves.runs.findIndex((run) => run.id === id);
    return n < 0 ? null : swatchOf(n, "bottom");
  }

  /**
   * Show the curves of these jobs: `{ id, name }`.
   *
   * @param {{ id: string, name: string, tokens?: boolean }[]} jobs
   */
  async show(jobs) {
    const runs = jobs.slice(0, MAX_CHARTED);
    const ids = runs.map((run) => run.id).join();
    if (ids === this.shown) {
      this.curves.runs.forEach((run, n) => {
        run.name = runs[n].name;
      });
      this.grid?.redraw();
      return;
    }
    this.shown = ids;
    this.curves = this.newCurves(runs);
    setText(byId("charts-note"), jobs.length > MAX_CHARTED ? `the first ${MAX_CHARTED} of ${jobs.length}` : "");
    if (!runs.length) return;
    await Promise.all(runs.filter(({ id }) => !this.metrics.has(id)).map(({ id }) => this.read(id)));
    if (this.shown !== ids) return;
    for (const run of runs) run.tokens = this.metrics.get(run.id)?.includes(TOKENS);
    this.curves.keys = ordered(new Set(runs.flatMap(({ id }) => this.metrics.get(id) ?? [])));
    if (this.grid) {
      this.grid.source = this.curves;
      this.grid.refresh();
    } else this.start();
    if (!this.curves.axes().includes(this.view.axis)) this.change({ axis: AXES[0] });
    this.showAxes();
    this.grid?.redraw();
  }

  /**
   * Return to the axis of the loaded curves if the service refuses the chosen one.
   *
   * @param {Error} error
   */
  restoreAxis(error) {
    toastError(error);
    if (!(error instanceof ApiError) || this.view.axis === this.curves.loadedAxis) return;
    this.grid?.change({ axis: this.curves.loadedAxis });
    this.showAxes();
  }

  /** @param {string} id */
  async read(id) {
    await call(`/v1/jobs/${id}`).then(
      (job) => this.metrics.set(id, Object.keys(job.metrics)),
      () => {},
    );
  }

  start() {
    const first = new Set([
      PINNED,
      COMBINED,
      ...this.curves
        .charts()
        .map(({ section }) => section)
        .filter((one, n, all) => all.indexOf(one) === n)
        .slice(0, OPEN_SECTIONS),
    ]);
    this.grid = new ChartGrid(byId("charts"), this.view, this.curves, {
      isOpen: (name) => first.has(name),
      onRange: (range) => {
        byId("reset-zoom").hidden = range === null;
      },
    });
    this.change(this.early);
  }

  /**
   * Change the view of the charts.
   *
   * @param {Partial<ChartsView>} values
   */
  change(values) {
    if (!this.grid) {
      Object.assign(this.early, values);
      return;
    }
    this.grid.change("axis" in values ? { ...values, range: null } : values);
    byId("reset-zoom").hidden = this.view.range === null;
  }
}

/**
 * Metrics with the losses first, then those of the evaluation.
 *
 * @param {Set<string>} names
 */
function ordered(names) {
  const rank = (/** @type {string} */ name) =>
    name === "train/loss" ? 0 : name.startsWith("eval/") ? 1 : name.startsWith("train/") ? 2 : 3;
  return [...names].sort((one, other) => rank(one) - rank(other) || (one < other ? -1 : 1));
}
