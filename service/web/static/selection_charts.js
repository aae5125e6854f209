// The charts beside the table: the curves of the selected jobs.

import { call } from "./api.js";
import { ChartGrid, PINNED } from "./chart_grid.js";
import { readView } from "./chart_view.js";
import { swatchColour } from "./colours.js";
import { byId, setText, toastError } from "./page.js";
import { AXES, RunCurves } from "./run_curves.js";

const OPEN_SECTIONS = 2;
export const MAX_CHARTED = 20;

export class SelectionCharts {
  constructor(panel) {
    this.panel = panel;
    this.view = readView(new URLSearchParams(location.search), AXES);
    this.metrics = new Map(); // the names of the metrics of each job
    this.curves = this.newCurves([]);
  }

  /** Curves of a selection; what arrives for an earlier one is not shown. */
  newCurves(runs) {
    const curves = new RunCurves(runs, this.view, {
      loaded: (keys) => { if (this.curves === curves) this.grid?.redraw(keys); },
      failed: (error) => { if (this.curves === curves) toastError(error); },
    });
    return curves;
  }

  /** The colour of a selected job's curves; null if it has none. */
  colourOf(id) {
    const n = this.curves.runs.findIndex((run) => run.id === id);
    return n < 0 ? null : swatchColour(n, this.curves.runs.length);
  }

  /** Show the curves of these jobs: `{ id, name }`. */
  async show(jobs) {
    const runs = jobs.slice(0, MAX_CHARTED);
    const ids = runs.map((run) => run.id).join();
    if (ids === this.shown) {
      this.curves.runs.forEach((run, n) => { run.name = runs[n].name; });
      this.grid?.redraw();
      return;
    }
    this.shown = ids;
    this.curves = this.newCurves(runs);
    setText(byId("charts-note"), jobs.length > MAX_CHARTED ? `the first ${MAX_CHARTED} of ${jobs.length}` : "");
    if (!runs.length) return;
    await Promise.all(runs.filter(({ id }) => !this.metrics.has(id)).map(({ id }) => this.read(id)));
    if (this.shown !== ids) return;
    this.curves.keys = ordered(new Set(runs.flatMap(({ id }) => this.metrics.get(id) ?? [])));
    if (this.grid) { this.grid.source = this.curves; this.grid.refresh(); } else this.start();
    this.grid.redraw();
  }

  async read(id) {
    await call(`/v1/jobs/${id}`).then((job) => this.metrics.set(id, Object.keys(job.metrics)), () => {});
  }

  start() {
    const first = new Set([PINNED, ...this.curves.charts().map(({ section }) => section).filter((one, n, all) => all.indexOf(one) === n).slice(0, OPEN_SECTIONS)]);
    this.grid = new ChartGrid(byId("charts"), this.view, this.curves, {
      isOpen: (name) => first.has(name),
      onRange: (range) => { byId("reset-zoom").hidden = range === null; },
    });
    const change = (values) => { this.grid.change("axis" in values ? { ...values, range: null } : values); byId("reset-zoom").hidden = this.view.range === null; };
    byId("axis").value = this.view.axis;
    byId("axis").addEventListener("change", () => { change({ axis: byId("axis").value }); });
    byId("log-scale").checked = this.view.log;
    byId("log-scale").addEventListener("change", (event) => change({ log: event.target.checked }));
    byId("chart-search").value = this.view.search;
    byId("chart-search").addEventListener("input", (event) => change({ search: event.target.value }));
    byId("reset-zoom").addEventListener("click", () => change({ range: null }));
  }
}

/** Metrics with the losses first, then those of the evaluation. */
function ordered(names) {
  const rank = (name) => (name === "train/loss" ? 0 : name.startsWith("eval/") ? 1 : name.startsWith("train/") ? 2 : 3);
  return [...names].sort((one, other) => rank(one) - rank(other) || (one < other ? -1 : 1));
}
