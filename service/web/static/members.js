// What each member of a sweep changes, beside its name in the table: all of a sweep have one name.

import { call } from "./api.js";
import { changesOf } from "./rows.js";

const PAUSE = 150; // milliseconds of rest before sweeps in sight are asked for

export class Members {
  /** `changed()` tells that more is known. */
  constructor(changed) {
    this.changed = changed;
    this.found = new Map();
    this.asked = new Set();
  }

  /** The changes of a job, in words; undefined where it is of no sweep, or they are not known yet. */
  of(id) {
    return this.found.get(id);
  }

  /** These jobs are in sight. */
  want(jobs) {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      for (const id of new Set(jobs.map((job) => job.sweep_id))) if (id) this.learn(id).catch(() => {}); // the table is whole without
    }, PAUSE);
  }

  /** A sweep, asked for once. Raises as `call` does. */
  async learn(id) {
    if (this.asked.has(id)) return null;
    this.asked.add(id);
    try {
      const sweep = await call(`/v1/sweeps/${encodeURIComponent(id)}`);
      for (const member of sweep.members) this.found.set(member.job_id, changesOf(member));
      this.changed();
      return sweep;
    } catch (error) {
      this.asked.delete(id);
      throw error;
    }
  }
}
