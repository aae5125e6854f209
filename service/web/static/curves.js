// The curves of one job: read from the API, extended by the stream, and cut where a later execution resumed.

import { call, query } from "./api.js";
import { asNumber } from "./format.js";

const MAX_POINTS = 1000; // of a series in the API's answer: two for each pixel of a chart
const RELOAD_LENGTH = 3000; // a series that has grown longer is read again, downsampled
const UNKNOWN_STEP = 2 ** 53; // after every point: it hides none

export class CurveStore {
  /**
   * `execution` is the newest one whose points the API returns; null if it is unknown. `resumedFrom` is the step that it
   * resumed from; null if no report has it yet.
   *
   * @param {string} jobId
   * @param {number | null} execution
   * @param {number | null} resumedFrom
   */
  constructor(jobId, execution = null, resumedFrom = null) {
    this.jobId = jobId;
    /** @type {Map<string, Points>} */
    this.series = new Map();
    this.execution = execution;
    this.resumedFrom = resumedFrom ?? UNKNOWN_STEP;
    this.truncated = false;
    this.isRead = false; // whether the API has ever answered
    this.complete = false; // until the API has answered, the points of the stream are curves without a beginning
  }

  /**
   * Read all curves, or those of a range of steps.
   *
   * @param {Extent | null} range
   */
  async load(range = null) {
    const [from_step, to_step] = range ?? [];
    const answer = await call(
      `/v1/jobs/${this.jobId}/metrics${query({ from_step, to_step, max_points: MAX_POINTS, system: true })}`,
    );
    for (const { key, steps, values, times, truncated } of answer.series) {
      const previous = this.series.get(key);
      const loaded = { steps, values: values.map(asNumber), times };
      if (previous && steps.length) appendNewer(loaded, previous);
      this.series.set(key, loaded);
      this.truncated ||= truncated;
    }
    this.isRead = this.complete = true;
    return this;
  }

  /**
   * Add points of the stream.
   *
   * @param {MetricsReport} report
   * @returns {{ hasNewMetric: boolean, unknownCut: boolean, resumedFrom: number | null }} whether a metric is new;
   *     whether the curves must be read again, since it is unknown which of their points the execution replaced; and
   *     the step from which a new execution resumed, or a lower one of the same execution.
   */
  add({ execution, resumed_from_step, points }) {
    const isNew = execution > (this.execution ?? 0);
    const isLowered = execution === this.execution && resumed_from_step < this.resumedFrom;
    const unknownCut = (isLowered || this.execution === null) && this.series.size > 0;
    const resumedFrom = isNew || isLowered ? resumed_from_step : null;
    if (resumedFrom !== null) {
      if (isNew && !unknownCut) for (const series of this.series.values()) cut(series, resumed_from_step);
      this.execution = execution;
      this.resumedFrom = resumed_from_step;
    }
    let hasNewMetric = false;
    for (const { key, step, value, time } of points) {
      if (execution < (this.execution ?? 0) && step > this.resumedFrom) continue; // replaced by a later execution
      const known = this.series.get(key);
      const series = known ?? { steps: [], values: [], times: [] };
      if (!known) {
        this.series.set(key, series);
        hasNewMetric = true;
      }
      insert(series, step, asNumber(value), time, execution >= (this.execution ?? 0));
    }
    return { hasNewMetric, unknownCut, resumedFrom };
  }

  /** Remove all curves: the job restarts from scratch. */
  clear() {
    this.series.clear();
    this.complete = false;
  }

  get isLong() {
    return [...this.series.values()].some((series) => series.steps.length > RELOAD_LENGTH);
  }
}

/**
 * Append the points that the stream has sent since the API read a curve.
 *
 * @param {Points} loaded
 * @param {Points} previous
 */
function appendNewer(loaded, previous) {
  const last = loaded.steps.at(-1);
  previous.steps.forEach((step, i) => {
    if (step <= last) return;
    loaded.steps.push(step);
    loaded.values.push(previous.values[i]);
    loaded.times.push(previous.times[i]);
  });
}

/**
 * Insert a point in the order of steps; `replaces`: instead of one at the same step, which is of an older execution.
 *
 * @param {Points} series
 * @param {number} step
 * @param {number} value
 * @param {string} time
 * @param {boolean} replaces
 */
function insert(series, step, value, time, replaces) {
  let end = series.steps.length;
  while (end > 0 && series.steps[end - 1] > step) end -= 1;
  const exists = end > 0 && series.steps[end - 1] === step;
  if (exists && !replaces) return;
  const [index, removed] = exists ? [end - 1, 1] : [end, 0];
  series.steps.splice(index, removed, step);
  series.values.splice(index, removed, value);
  series.times.splice(index, removed, time);
}

/**
 * Remove all points after a step.
 *
 * @param {Points} series
 * @param {number} step
 */
function cut(series, step) {
  let length = series.steps.length;
  while (length > 0 && series.steps[length - 1] > step) length -= 1;
  for (const list of [series.steps, series.values, series.times]) list.length = length;
}

/**
 * The exponential moving average of values, with bias correction as in Adam (https://arxiv.org/abs/1412.6980, section 3).
 * Values that are not finite are returned unchanged; on a log scale, so are those that are not positive.
 *
 * @param {number[]} values
 * @param {number} weight
 */
export function smoothed(values, weight, { log = false } = {}) {
  if (!weight) return values;
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    if (!Number.isFinite(value) || (log && value <= 0)) return value;
    mean = mean * weight + value * (1 - weight);
    sum = sum * weight + (1 - weight);
    return mean / sum;
  });
}
