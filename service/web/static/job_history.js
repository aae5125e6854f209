// The history of a job: its attempts as a timeline, its checkpoints and its events.

import { urlOf } from "./address.js";
import { call, query } from "./api.js";
import { EventList } from "./event_list.js";
import { bytes, count, duration, number } from "./format.js";
import { byId, formatTimes, make, setText } from "./page.js";

/** @type {Record<string, string>} */
const EXIT_REASONS = {
  completed: "completed",
  error: "failed",
  out_of_memory: "out of memory",
  disk_full: "disk full",
  stalled: "stalled",
  rejected: "rejected",
  preempted: "preempted",
  time_limit: "reached its time limit",
  user_cancelled: "cancelled or paused on request",
  node_failure: "node failure",
  cancelled_outside: "cancelled outside Trainyard",
};
const FAILURES = new Set(["error", "out_of_memory", "disk_full", "stalled", "rejected", "node_failure"]);

/**
 * Show the attempts of a job, newest first, each with its waiting time and its runtime on a common time axis.
 *
 * @param {Api.AttemptResource[]} attempts
 */
export function showAttempts(attempts) {
  const first = Math.min(...attempts.map((attempt) => Date.parse(attempt.created_at)));
  const last = Math.max(...attempts.map((attempt) => Date.parse(attempt.ended_at ?? new Date().toISOString())));
  const style = (/** @type {number} */ from, /** @type {number} */ to) =>
    `left:${(100 * (from - first)) / (last - first || 1)}%;width:${(100 * (to - from)) / (last - first || 1)}%`;
  byId("attempts").replaceChildren(
    ...[...attempts].reverse().map((attempt) => {
      const created = Date.parse(attempt.created_at);
      const started = attempt.started_at ? Date.parse(attempt.started_at) : null;
      const end = attempt.ended_at ? Date.parse(attempt.ended_at) : Date.now();
      const timeline = make(
        "div",
        { class: "timeline", "aria-hidden": "true" },
        make("i", { class: "waiting", style: style(created, started ?? end) }),
      );
      const reason = attempt.exit_reason ?? "";
      if (started)
        timeline.append(
          make("i", {
            class: `running ${FAILURES.has(reason) ? "bad" : reason === "completed" ? "good" : ""}`,
            style: style(started, end),
          }),
        );
      const evidence = [attempt.scheduler_end, attempt.failure].filter(Boolean).join("; ");
      const allocation = [attempt.scheduler_id, attempt.nodes.join(", ")].filter(Boolean).join(" on ");
      return make(
        "li",
        {},
        make("div", {}, make("strong", { text: `Attempt ${attempt.number}` }), ` ${attemptState(attempt)}`),
        make("time", { datetime: attempt.created_at }),
        timeline,
        make("div", { class: "detail", text: allocation }),
        make("div", { class: "detail", text: durations(created, started, end) }),
        evidence ? make("div", { class: "detail", text: evidence }) : null,
      );
    }),
  );
  formatTimes(byId("attempts"));
}

/** @param {Api.AttemptResource} attempt */
function attemptState(attempt) {
  const resumed = attempt.resumed_from_step ? `, from step ${count(attempt.resumed_from_step)}` : "";
  if (attempt.exit_reason) return `${EXIT_REASONS[attempt.exit_reason] ?? attempt.exit_reason}${resumed}`;
  return (attempt.ended_at ? "ended" : attempt.started_at ? "running" : "waiting") + resumed;
}

/**
 * @param {number} created
 * @param {number | null} started
 * @param {number} end
 */
const durations = (created, started, end) =>
  started
    ? `waited ${duration((started - created) / 1000)}, ran ${duration((end - started) / 1000)}`
    : `waited ${duration((end - created) / 1000)}`;

/**
 * Show the stored checkpoints, newest first.
 *
 * @param {string} jobId
 * @param {Api.CheckpointResource[]} checkpoints
 * @param {boolean} ended
 */
export function showCheckpoints(jobId, checkpoints, ended) {
  byId("no-checkpoints").hidden = checkpoints.length > 0;
  if (checkpoints.length) byId("no-checkpoints").parentElement?.classList.remove("none");
  setText(byId("no-checkpoints"), ended ? "None were saved." : "None yet.");
  byId("checkpoints", HTMLTableElement).tBodies[0].replaceChildren(
    ...[...checkpoints]
      .reverse()
      .map((one) =>
        make(
          "tr",
          {},
          make(
            "td",
            {},
            make("strong", { text: count(one.step) }),
            " ",
            one.best ? make("span", { class: "chip good", text: "best" }) : null,
            " ",
            one.latest ? make("span", { class: "chip", text: "latest" }) : null,
          ),
          make("td", { class: "right", text: bytes(one.size_bytes) }),
          make("td", { text: metricsText(one.metrics) }),
          make("td", {}, make("time", { datetime: one.created_at })),
          make(
            "td",
            {},
            make("a", {
              href: urlOf(`/v1/jobs/${jobId}/checkpoints/${one.id}/archive`),
              download: true,
              text: "Download",
              "aria-label": `Download the checkpoint of step ${one.step}`,
            }),
          ),
        ),
      ),
  );
  formatTimes(byId("checkpoints"));
}

/**
 * Up to three metrics of a checkpoint: those of the evaluation, or any if it was not evaluated.
 *
 * @param {Record<string, MetricValue>} metrics
 */
function metricsText(metrics) {
  const keys = Object.keys(metrics);
  const shown = keys.some((key) => key.startsWith("eval/")) ? keys.filter((key) => key.startsWith("eval/")) : keys;
  return shown
    .slice(0, 3)
    .map((key) => `${key.split("/").at(-1)} ${number(metrics[key])}`)
    .join(", ");
}

const PAGE_SIZE = 200; // all events of most jobs, which the marks of the charts need
const SHOWN = 30;

/** The events of a job, newest first. */
export class JobHistory {
  /**
   * @param {string} jobId
   * @param {() => void} changed is called when more events are known.
   */
  constructor(jobId, changed) {
    this.jobId = jobId;
    this.changed = changed;
    this.list = new EventList(byId("events"));
    /** @type {string | null} */
    this.after = null;
    this.hasMore = true;
    /** @type {Api.EventResource[]} */
    this.hidden = [];
    /** @type {Map<string, Api.EventResource>} */
    this.byEventId = new Map();
    byId("older-events").addEventListener("click", () => this.loadOlder());
  }

  /** All events that are known so far. */
  get events() {
    return [...this.byEventId.values()];
  }

  /** Show the next older events; reads a page if none are left. */
  async loadOlder() {
    if (!this.hidden.length && this.hasMore) {
      const page = await call(`/v1/jobs/${this.jobId}/events${query({ limit: PAGE_SIZE, after: this.after })}`);
      this.hidden = page.data.filter((/** @type {Api.EventResource} */ event) => this.store(event));
      this.after = page.last_id ?? this.after;
      this.hasMore = page.has_more;
      this.changed();
    }
    for (const event of this.hidden.splice(0, SHOWN)) this.list.add(event, { isOlder: true });
    byId("older-events").hidden = !this.hidden.length && !this.hasMore;
  }

  /** Read and show the newest events. */
  async loadNew() {
    const page = await call(`/v1/jobs/${this.jobId}/events${query({ limit: SHOWN })}`);
    for (const event of page.data.reverse()) this.add(event);
  }

  /**
   * Show a new event.
   *
   * @param {Api.EventResource} event
   */
  add(event) {
    if (!this.store(event)) return;
    this.list.add(event);
    this.changed();
  }

  /**
   * Store an event; false if it is known already.
   *
   * @param {Api.EventResource} event
   */
  store(event) {
    if (this.byEventId.has(event.id)) return false;
    this.byEventId.set(event.id, event);
    return true;
  }
}
