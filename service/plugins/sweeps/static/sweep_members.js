// What each member of a sweep changes. All members have the same name, so the table shows their changes after it.

import { call } from "./api.js";
import { connectNotes, removeFilter, showNotes } from "./jobs.js";
import { MEMBER_STATES, memberChanges } from "./member_texts.js";
import { byId, pageOf, setText, within } from "./page.js";

const PAUSE = 150; // milliseconds after the last scroll before sweeps are requested

class SweepMembers {
  constructor() {
    /** @type {Map<string, string>} */
    this.changes = new Map();
    /** @type {Map<string, string>} */
    this.names = new Map();
    /** @type {Set<string>} */
    this.requested = new Set();
  }

  /**
   * The changes of a job as text; undefined if they are unknown, or if it is not in a sweep.
   *
   * @param {string} id
   */
  changesOf(id) {
    return this.changes.get(id);
  }

  /**
   * The name of a sweep; undefined if it is unknown.
   *
   * @param {string | null} sweep
   */
  nameOf(sweep) {
    return sweep === null ? undefined : this.names.get(sweep);
  }

  /**
   * Request the sweeps of the visible jobs.
   *
   * @param {{ sweep_id: string | null }[]} jobs
   */
  request(jobs) {
    clearTimeout(this.timer);
    /** @type {number | undefined} */
    this.timer = setTimeout(() => {
      // The changes are optional: a failed request is not reported.
      for (const id of new Set(jobs.map((job) => job.sweep_id))) if (id) this.load(id).catch(() => {});
    }, PAUSE);
  }

  /**
   * A sweep, requested once; null on later calls. Throws like `call`.
   *
   * @param {string} id
   * @returns {Promise<Api.SweepDetail | null>}
   */
  async load(id) {
    if (this.requested.has(id)) return null;
    this.requested.add(id);
    try {
      const sweep = await call(`/v1/sweeps/${encodeURIComponent(id)}`);
      this.names.set(id, sweep.name);
      for (const member of sweep.members)
        this.changes.set(
          member.job_id,
          [memberChanges(member), member.state === "stopped_early" && MEMBER_STATES.stopped_early]
            .filter(Boolean)
            .join(", "),
        );
      showNotes();
      return sweep;
    } catch (error) {
      this.requested.delete(id);
      throw error;
    }
  }
}

const members = new SweepMembers();
const filter = byId("sweep-filter");

/** Show the name of the sweep that the address filters by, with a link to its comparison. */
async function showFilter() {
  const id = new URLSearchParams(location.search).get("sweep");
  const sweep = id && (await members.load(id));
  if (!sweep) return;
  filter.hidden = false;
  const link = within(filter, "a", HTMLAnchorElement);
  link.href = pageOf("sweep", id) ?? "";
  setText(link, sweep.name);
}

within(filter, "button").addEventListener("click", () => {
  filter.hidden = true;
  removeFilter("sweep");
});
connectNotes(members);
showFilter().catch(() => {}); // the name is optional
