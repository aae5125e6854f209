// What a job left behind it: attempts as a timeline, checkpoints, and the lines of its history.

import { call, query } from "./api.js";
import { count, duration, number, size } from "./format.js";
import { byId, localTimes, make } from "./page.js";

const REASONS = {
  completed: "completed", error: "failed", out_of_memory: "out of memory", stalled: "stalled", rejected: "rejected",
  preempted: "preempted", time_limit: "reached its time limit", user_cancelled: "cancelled or paused on request",
  node_failure: "node failure", cancelled_outside: "cancelled outside Trainyard",
};
const BAD = new Set(["error", "out_of_memory", "stalled", "rejected", "node_failure"]);

/** The attempts of a job, each a line from when it was made to its end. */
export function showAttempts(attempts) {
  const first = Math.min(...attempts.map((attempt) => Date.parse(attempt.created_at)));
  const last = Math.max(...attempts.map((attempt) => Date.parse(attempt.ended_at ?? new Date().toISOString())));
  const place = (from, to) => `left:${(100 * (from - first)) / (last - first || 1)}%;width:${(100 * (to - from)) / (last - first || 1)}%`;
  byId("attempts").replaceChildren(...[...attempts].reverse().map((attempt) => {
    const made = Date.parse(attempt.created_at);
    const started = attempt.started_at ? Date.parse(attempt.started_at) : null;
    const end = attempt.ended_at ? Date.parse(attempt.ended_at) : Date.now();
    const line = make("div", { class: "line", "aria-hidden": "true" }, make("i", { class: "waited", style: place(made, started ?? end) }));
    const reason = attempt.exit_reason;
    if (started) line.append(make("i", { class: `ran ${BAD.has(reason) ? "bad" : reason === "completed" ? "good" : ""}`, style: place(started, end) }));
    const where = [attempt.scheduler_id, attempt.nodes.join(", ")].filter(Boolean).join(" on ");
    return make("li", {},
      make("div", {}, make("strong", { text: `Attempt ${attempt.number}` }), ` ${words(attempt)}`),
      make("time", { datetime: attempt.created_at }),
      line,
      make("div", { class: "place", text: where }),
      make("div", { class: "place", text: spans(made, started, end) }));
  }));
  localTimes(byId("attempts"));
}

function words(attempt) {
  const resumed = attempt.resumed_from_step ? `, from step ${count(attempt.resumed_from_step)}` : "";
  if (attempt.exit_reason) return `${REASONS[attempt.exit_reason] ?? attempt.exit_reason}${resumed}`;
  return (attempt.ended_at ? "ended" : attempt.started_at ? "running" : "waiting") + resumed;
}

const spans = (made, started, end) =>
  started ? `waited ${duration((started - made) / 1000)}, ran ${duration((end - started) / 1000)}` : `waited ${duration((end - made) / 1000)}`;

/** The stored checkpoints, newest first. */
export function showCheckpoints(jobId, checkpoints) {
  byId("no-checkpoints").hidden = checkpoints.length > 0;
  byId("checkpoints").tBodies[0].replaceChildren(...[...checkpoints].reverse().map((one) => make("tr", {},
    make("td", {}, make("strong", { text: count(one.step) }), " ",
      one.best ? make("span", { class: "chip good", text: "best" }) : null, " ", one.latest ? make("span", { class: "chip", text: "latest" }) : null),
    make("td", { class: "right", text: size(one.size_bytes) }),
    make("td", { text: measured(one.metrics) }),
    make("td", {}, make("time", { datetime: one.created_at })),
    make("td", {}, make("a", { href: `/v1/jobs/${jobId}/checkpoints/${one.id}/archive`, download: true, text: "Download", "aria-label": `Download the checkpoint of step ${one.step}` })))));
  localTimes(byId("checkpoints"));
}

/** What was evaluated; where nothing was, the loss. */
function measured(metrics) {
  const keys = Object.keys(metrics);
  const wanted = keys.some((key) => key.startsWith("eval/")) ? keys.filter((key) => key.startsWith("eval/")) : keys;
  return wanted.slice(0, 3).map((key) => `${key.split("/").at(-1)} ${number(metrics[key])}`).join(", ");
}

const READ = 200; // events at once: all that most jobs have, as the marks of the curves need them
const SHOWN = 30;

/** The job's history, newest first. */
export class History {
  /** `changed()` is called when more of it is known. */
  constructor(jobId, changed) {
    Object.assign(this, { jobId, changed });
    this.after = null;
    this.more = true;
    this.unshown = [];
    this.known = new Map();
    byId("older").addEventListener("click", () => this.older());
  }

  /** All that is known so far. */
  get events() {
    return [...this.known.values()];
  }

  /** Show more, which is read where it is not known. */
  async older() {
    if (!this.unshown.length && this.more) {
      const page = await call(`/v1/jobs/${this.jobId}/events${query({ limit: READ, after: this.after })}`);
      this.unshown = page.data.filter((event) => this.learn(event));
      this.after = page.last_id ?? this.after;
      this.more = page.has_more;
      this.changed();
    }
    byId("events").append(...this.unshown.splice(0, SHOWN).map(line));
    byId("older").hidden = !this.unshown.length && !this.more;
  }

  /** What happened since it was last read. */
  async newest() {
    const page = await call(`/v1/jobs/${this.jobId}/events${query({ limit: SHOWN })}`);
    for (const event of page.data.reverse()) this.add(event);
  }

  /** What just happened. */
  add(event) {
    if (!this.learn(event)) return;
    byId("events").prepend(line(event));
    this.changed();
  }

  /** Whether it is new. */
  learn(event) {
    if (this.known.has(event.id)) return false;
    this.known.set(event.id, event);
    return true;
  }
}

function line(event) {
  const made = make("li", {}, make("time", { datetime: event.created_at, "data-as": "exact" }), make("span", { class: event.level, text: event.message }));
  localTimes(made);
  return made;
}
