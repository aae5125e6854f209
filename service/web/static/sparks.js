// The last losses of the jobs in sight: asked for twenty jobs at a time, then grown by the stream.

import { call, query } from "./api.js";
import { LOSS } from "./rows.js";

const AT_ONCE = 20;
const POINTS = 40;

export class Curves {
  /** `changed(id)` tells that a job's curve is another now. */
  constructor(changed) {
    this.changed = changed;
    this.found = new Map();
    this.wanted = new Set();
    this.asked = new Set();
  }

  /** Values, oldest first; null where they are not known. */
  of(id) {
    return this.found.get(id)?.values ?? null;
  }

  /** These jobs are in sight. */
  want(jobs) {
    this.wanted = new Set(jobs.map((job) => job.id).filter((id) => !this.asked.has(id)));
    this.soon();
  }

  /** The stream tells only the newest value, now and then: the curve of a job that is over is asked for as a whole. */
  renew(id) {
    this.asked.delete(id);
    this.wanted.add(id);
    this.soon();
  }

  soon() {
    clearTimeout(this.later); // asked for when the scrolling rests
    this.later = setTimeout(() => this.fetch(), 150);
  }

  async fetch() {
    const ids = [...this.wanted].slice(0, AT_ONCE);
    if (!ids.length) return;
    for (const id of ids) { this.wanted.delete(id); this.asked.add(id); }
    try {
      const answer = await call(`/v1/metrics${query({ job: ids, keys: LOSS, max_points: POINTS })}`);
      for (const { job_id, series } of answer.data) {
        const [{ steps, values }] = series;
        const grown = this.found.get(job_id); // by the stream, while the answer was on its way
        const from = grown ? grown.steps.findIndex((step) => step > (steps.at(-1) ?? -1)) : -1;
        if (from >= 0) { steps.push(...grown.steps.slice(from)); values.push(...grown.values.slice(from)); }
        this.found.set(job_id, { steps, values });
        this.changed(job_id);
      }
    } catch {
      for (const id of ids) this.asked.delete(id); // asked for again when next in sight
      return;
    }
    this.fetch();
  }

  /** One more value; a step that was run again replaces what came after it. */
  add(id, step, value) {
    const curve = this.found.get(id) ?? { steps: [], values: [] };
    while (curve.steps.length && curve.steps.at(-1) >= step) { curve.steps.pop(); curve.values.pop(); }
    curve.steps.push(step);
    curve.values.push(value);
    if (curve.steps.length > POINTS * 2) {
      curve.steps = curve.steps.filter((_, i) => i % 2);
      curve.values = curve.values.filter((_, i) => i % 2);
    }
    this.found.set(id, curve);
    this.changed(id);
  }
}
