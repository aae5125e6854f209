// The points of one job's metrics: read from the API, grown by the stream, cut where a later execution began anew.

import { call, query } from "./api.js";
import { asNumber } from "./format.js";

export const POINTS = 1000; // a series, as the API thins it: two for each pixel of a frame
const MOST = 3000; // a series that grew beyond is read again, thinned

export class CurveStore {
  /** `execution` is the one whose points the API tells last, where that is known. */
  constructor(jobId, execution = null) {
    this.jobId = jobId;
    this.series = new Map();
    this.execution = execution;
    this.resumedFrom = 0;
    this.truncated = false;
    this.whole = false; // until the API has answered, what the stream brings is an end without a beginning
  }

  /** Read every curve, or those of a range of steps into a store of their own. */
  async load(range = null) {
    const [from_step, to_step] = range ?? [];
    const told = await call(`/v1/jobs/${this.jobId}/metrics${query({ from_step, to_step, max_points: POINTS })}`);
    for (const { key, steps, values, times, truncated } of told.series) {
      const known = this.series.get(key);
      const found = { steps, values: values.map(asNumber), times };
      // What the stream told meanwhile may be newer than the answer.
      if (known && steps.length) this.keepNewer(known, found);
      this.series.set(key, found);
      this.truncated ||= truncated;
    }
    this.whole = true;
    return this;
  }

  keepNewer(known, found) {
    const last = found.steps.at(-1);
    known.steps.forEach((step, i) => { if (step > last) push(found, step, known.values[i], known.times[i]); });
  }

  /**
   * Take points of the stream.
   *
   * @returns {{ fresh: boolean, unsure: boolean, begun: number | null }} whether there is a metric that was not there
   *     before; whether the curves have to be read again, because nobody knows which of them this execution began anew;
   *     and the step from which an execution goes on that was not known before.
   */
  add({ execution, resumed_from_step, points }) {
    const unsure = this.execution === null && this.series.size > 0;
    const begun = execution > (this.execution ?? 0) ? resumed_from_step : null;
    if (begun !== null) {
      if (!unsure) for (const series of this.series.values()) cut(series, resumed_from_step);
      this.execution = execution;
      this.resumedFrom = resumed_from_step;
    }
    let fresh = false;
    for (const { key, step, value, time } of points) {
      if (execution < this.execution && step > this.resumedFrom) continue; // done again since
      if (!this.series.has(key)) { this.series.set(key, { steps: [], values: [], times: [] }); fresh = true; }
      place(this.series.get(key), step, asNumber(value), time);
    }
    return { fresh, unsure, begun };
  }

  /** Forget everything: the job begins from scratch. */
  clear() {
    this.series.clear();
    this.whole = false;
  }

  get isLong() {
    return [...this.series.values()].some((series) => series.steps.length > MOST);
  }
}

function push(series, step, value, time) {
  series.steps.push(step);
  series.values.push(value);
  series.times.push(time);
}

/** In order of steps; a step that is there is replaced. */
function place(series, step, value, time) {
  let at = series.steps.length;
  while (at > 0 && series.steps[at - 1] > step) at -= 1;
  const same = at > 0 && series.steps[at - 1] === step;
  const [index, removed] = same ? [at - 1, 1] : [at, 0];
  series.steps.splice(index, removed, step);
  series.values.splice(index, removed, value);
  series.times.splice(index, removed, time);
}

/** Drop what comes after a step. */
function cut(series, step) {
  let length = series.steps.length;
  while (length > 0 && series.steps[length - 1] > step) length -= 1;
  for (const list of [series.steps, series.values, series.times]) list.length = length;
}

/**
 * An exponential mean without the bias of its beginning. NaN and infinities are left where they are; so is, for a log
 * scale, what such a scale cannot show: a mean would make ever smaller numbers of zeros.
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
