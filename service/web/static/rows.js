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

/** An empty row for a job. */
export function newRow(job) {
  const row = byId("line").content.firstElementChild.cloneNode(true);
  row.dataset.id = job.id;
  row.querySelector(".name a").href = `/jobs/${encodeURIComponent(job.id)}`;
  const time = row.querySelector("time");
  time.setAttribute("datetime", job.created_at);
  setText(time, age(job.created_at));
  return row;
}

/** Fill a row with what the job is now. `curve` are its last losses, oldest first. */
export function fillRow(row, job, { chosen = false, curve = null } = {}) {
  const box = row.querySelector(".pick input");
  box.checked = chosen;
  box.setAttribute("aria-label", `Select ${job.name}`);
  const chip = row.querySelector(".chip");
  chip.className = `chip ${tone(job.status)}`;
  chip.title = job.status_message;
  setText(chip, job.status);
  setText(row.querySelector(".name a"), job.name);
  row.querySelector(".bar > span").style.width = `${(done(job) * 100).toFixed(1)}%`;
  const progress = job.progress;
  const why = row.querySelector(".why");
  setText(why, progress ? "" : job.status_message);
  why.title = why.textContent;
  why.hidden = Boolean(progress);
  row.querySelector(".bar").hidden = !progress;
  setText(row.querySelector(".steps"), progress ? `${count(progress.step)} / ${count(progress.total_steps)}` : "");
  const left = progress?.eta_seconds;
  setText(row.querySelector(".left"), left === null || left === undefined ? "" : `${duration(left)} left`);
  const loss = job.metrics?.[LOSS];
  setText(row.querySelector(".value"), loss === null || loss === undefined ? "" : number(loss));
  setText(row.querySelector(".gpus"), String(job.spec.gpus ?? 1));
  setText(row.querySelector(".made"), madeOf(job.spec));
  setText(row.querySelector(".owner"), job.created_by);
  if (curve) row.querySelector(".spark path").setAttribute("d", sparkline(curve));
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
