// One row of the table of jobs: the same places as the server fills (`views.row`, the macro in jobs.html).

import { asNumber, age, count, duration, madeOf, number } from "./format.js";
import { byId, setText } from "./page.js";

export const LOSS = "train/loss";

const TONES = {
  queued: "wait", submitting: "wait", pending: "wait", running: "run", pausing: "run", cancelling: "run",
  paused: "rest", lost: "bad", succeeded: "good", failed: "bad", cancelled: "off",
};

/** The class of a status's chip. */
export const tone = (status) => TONES[status] ?? "off";

/** Of its steps, the part that is done. */
export const done = (job) => (job.progress?.total_steps ? Math.min(1, job.progress.step / job.progress.total_steps) : 0);

const PLACES = {
  box: ".pick input", chip: ".chip", name: ".name a", note: ".name small", why: ".why", bar: ".bar", done: ".bar > span", steps: ".steps", left: ".left",
  spark: ".spark path", loss: ".value", gpus: ".gpus", made: ".made", owner: ".owner", age: "time",
};
const found = new WeakMap();

/** An empty row, to be filled with one job after the other. */
export const newRow = () => byId("line").content.firstElementChild.cloneNode(true);

function placesOf(row) {
  if (!found.has(row)) found.set(row, Object.fromEntries(Object.entries(PLACES).map(([name, path]) => [name, row.querySelector(path)])));
  return found.get(row);
}

/** Fill a row with what the job is now. `curve` are its last losses, oldest first; `note` stands beside its name. */
export function fillRow(row, job, { chosen = false, curve = null, note = "" } = {}) {
  const at = placesOf(row);
  const { progress } = job;
  if (row.dataset.id !== job.id) become(row, at, job);
  at.box.checked = chosen;
  setText(at.note, note);
  at.note.title = note;
  at.chip.className = `chip ${tone(job.status)}`;
  at.chip.title = job.status_message;
  setText(at.chip, job.status);
  setText(at.why, progress ? "" : job.status_message);
  at.why.title = progress ? "" : job.status_message;
  at.why.hidden = Boolean(progress);
  at.bar.hidden = !progress;
  at.done.style.width = `${(done(job) * 100).toFixed(1)}%`;
  setText(at.steps, progress ? `${count(progress.step)} / ${count(progress.total_steps)}` : "");
  const left = progress?.eta_seconds;
  setText(at.left, left === null || left === undefined ? "" : `${duration(left)} left`);
  const loss = job.metrics?.[LOSS];
  setText(at.loss, loss === null || loss === undefined ? "" : number(loss));
  at.spark.setAttribute("d", curve ? sparkline(curve) : "");
}

/** What does not change while a row shows one job. */
function become(row, at, job) {
  row.dataset.id = job.id;
  at.box.setAttribute("aria-label", `Select ${job.name}`);
  at.name.href = `/jobs/${encodeURIComponent(job.id)}`;
  setText(at.name, job.name);
  setText(at.gpus, String(job.spec.gpus ?? 1));
  setText(at.made, madeOf(job.spec));
  setText(at.owner, job.created_by);
  at.age.setAttribute("datetime", job.created_at);
  at.age.removeAttribute("title");
  setText(at.age, age(job.created_at));
}

/** A path in a box of 80 by 20. */
export function sparkline(values) {
  const found = values.map(asNumber).filter(Number.isFinite);
  if (found.length < 2) return "";
  const low = Math.min(...found);
  const span = Math.max(...found) - low || 1;
  const across = 78 / (found.length - 1);
  return "M" + found.map((value, i) => `${(1 + i * across).toFixed(1)} ${(18 - (16 * (value - low)) / span).toFixed(1)}`).join("L");
}

/** Of a job of the API, what the table shows. */
export function brief(job) {
  const { gpus, strategy, precision, lora_rank } = job.spec;
  return {
    id: job.id, name: job.name, status: job.status, status_message: job.status_message, created_by: job.created_by,
    created_at: job.created_at, progress: job.progress, sweep_id: job.sweep_id,
    spec: { gpus, strategy, precision, lora_rank }, metrics: { [LOSS]: job.metrics[LOSS] },
  };
}

/** What a member of a sweep changes: `lr 0.001, size 32`. */
export const changesOf = (member) => Object.entries(member.values)
  .map(([field, value]) => `${field.split(".").at(-1)} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
