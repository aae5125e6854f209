// The last losses of the visible jobs: requested for 20 jobs at a time, then extended by the stream.

import { call, query } from "./api.js";
import { LOSS } from "./job_rows.js";

const JOBS_PER_REQUEST = 20;
const POINTS = 40;
const PAUSE = 150; // milliseconds after the last scroll before curves are requested

export class Sparklines {
  /** @param {(id: string) => void} changed is called when the curve of a job has changed. */
  constructor(changed) {
    this.changed = changed;
    /** @type {Map<string, { steps: number[], values: MetricValue[] }>} */
    this.curves = new Map();
    /** @type {Map<string, string>} */
    this.keys = new Map(); // the loss of each job
    /** @type {Set<string>} */
    this.missing = new Set();
    /** @type {Set<string>} */
    this.requested = new Set();
  }

  /**
   * The losses of a job, oldest first; null if they are unknown.
   *
   * @param {string} id
   */
  valuesOf(id) {
    return this.curves.get(id)?.values ?? null;
  }

  /**
   * Request the curves of the visible jobs.
   *
   * @param {{ id: string, loss_metric: string | null }[]} jobs
   */
  request(jobs) {
    for (const job of jobs) this.keys.set(job.id, job.loss_metric ?? LOSS);
    this.missing = new Set(jobs.map((job) => job.id).filter((id) => !this.requested.has(id)));
    this.schedule();
  }

  /**
   * Read a curve again. The stream sends only some values, so a finished job's curve is read completely.
   *
   * @param {string} id
   */
  reload(id) {
    this.requested.delete(id);
    this.missing.add(id);
    this.schedule();
  }

  /** @param {string} id */
  keyOf(id) {
    return this.keys.get(id) ?? LOSS;
  }

  schedule() {
    clearTimeout(this.timer);
    /** @type {number | undefined} */
    this.timer = setTimeout(() => this.fetch(), PAUSE);
  }

  async fetch() {
    const key = this.keyOf([...this.missing][0]); // a request has one metric
    const ids = [...this.missing].filter((id) => this.keyOf(id) === key).slice(0, JOBS_PER_REQUEST);
    if (!ids.length) return;
    for (const id of ids) {
      this.missing.delete(id);
      this.requested.add(id);
    }
    try {
      const { data } = await call(`/v1/metrics${query({ job: ids, key, max_points: POINTS })}`);
      for (const { job_id, series } of data) {
        const [{ steps, values }] = series;
        const streamed = this.curves.get(job_id); // points that arrived during the request
        const from = streamed ? streamed.steps.findIndex((step) => step > (steps.at(-1) ?? -1)) : -1;
        if (streamed && from >= 0) {
          steps.push(...streamed.steps.slice(from));
          values.push(...streamed.values.slice(from));
        }
        this.curves.set(job_id, { steps, values });
        this.changed(job_id);
      }
    } catch {
      for (const id of ids) this.requested.delete(id); // requested again when they are next visible
      return;
    }
    this.fetch();
  }

  /**
   * Add a value. It replaces all later steps, which are run again after a restart.
   *
   * @param {string} id
   * @param {number} step
   * @param {MetricValue} value
   */
  add(id, step, value) {
    const curve = this.curves.get(id) ?? { steps: [], values: [] };
    while (curve.steps.length && curve.steps.at(-1) >= step) {
      curve.steps.pop();
      curve.values.pop();
    }
    curve.steps.push(step);
    curve.values.push(value);
    if (curve.steps.length > POINTS * 2) {
      curve.steps = curve.steps.filter((_, i) => i % 2);
      curve.values = curve.values.filter((_, i) => i % 2);
    }
    this.curves.set(id, curve);
    this.changed(id);
  }
}
