// The rows of the table of jobs.

import { sparklinePath } from "./curve_preview.js";
import { age, duration, number, stepText, strategyLabel } from "./format.js";
import { tone } from "./job_status.js";
import { byId, setText } from "./page.js";

export const LOSS = "train/loss";

/** The newest loss of a job, whatever its program calls it; null if it has none. */
export const lossOf = (job) => job.metrics?.[job.loss_metric ?? LOSS] ?? null;

/** The fraction of a job's steps that are done, 0 to 1. */
export const fractionDone = (job) => (job.progress?.total_steps ? Math.min(1, job.progress.step / job.progress.total_steps) : 0);

/** The ETA of a job's progress in seconds; null if it is unknown. */
export const etaOf = (progress) => progress?.eta_seconds ?? null;

const CELLS = {
  checkbox: ".select input", chip: ".chip", name: ".name a", note: ".name small", message: ".message", bar: ".bar", done: ".bar > span", steps: ".steps",
  eta: ".eta", sparkline: ".sparkline path", loss: ".value", gpus: ".gpus", strategy: ".strategy", owner: ".owner", age: "time",
};
const cellsByRow = new WeakMap();

/** An empty row, which can be filled with one job after another. */
export const newRow = () => byId("row").content.firstElementChild.cloneNode(true);

function cellsOf(row) {
  if (!cellsByRow.has(row)) cellsByRow.set(row, Object.fromEntries(Object.entries(CELLS).map(([name, selector]) => [name, row.querySelector(selector)])));
  return cellsByRow.get(row);
}

/** Fill a row with a job. `curve` has its last losses, oldest first; `note` is shown after its name. */
export function fillRow(row, job, { selected = false, curve = null, note = "" } = {}) {
  const cells = cellsOf(row);
  const { progress } = job;
  if (row.dataset.id !== job.id) fillConstants(row, cells, job);
  cells.checkbox.checked = selected;
  setText(cells.note, note);
  cells.note.title = note;
  cells.chip.className = `chip ${tone(job.status)}`;
  cells.chip.title = job.status_message;
  setText(cells.chip, job.status);
  setText(cells.message, progress ? "" : job.status_message);
  cells.message.title = progress ? "" : job.status_message;
  cells.message.hidden = Boolean(progress);
  cells.bar.hidden = !progress?.total_steps;
  cells.done.style.width = `${(fractionDone(job) * 100).toFixed(1)}%`;
  setText(cells.steps, progress ? stepText(progress) : "");
  setText(cells.eta, etaOf(progress) === null ? "" : `${duration(etaOf(progress))} left`);
  const loss = job.metrics?.[LOSS] ?? null;
  setText(cells.loss, loss === null ? "" : number(loss));
  cells.sparkline.setAttribute("d", curve ? sparklinePath(curve) : "");
}

/** Fill the cells that do not change while a row shows the same job. */
function fillConstants(row, cells, job) {
  row.dataset.id = job.id;
  cells.checkbox.setAttribute("aria-label", `Select ${job.name}`);
  cells.name.href = `/jobs/${encodeURIComponent(job.id)}`;
  setText(cells.name, job.name);
  setText(cells.gpus, String(job.spec.gpus ?? 1));
  setText(cells.strategy, strategyLabel(job.spec));
  setText(cells.owner, job.created_by);
  cells.age.setAttribute("datetime", job.created_at);
  cells.age.removeAttribute("title");
  setText(cells.age, age(job.created_at));
}

/** The fields of a job that the table shows, so that 10,000 jobs take little memory. The loss has one name for all jobs. */
export function rowFields(job) {
  const { gpus, strategy, precision, lora_rank } = job.spec;
  return {
    id: job.id, name: job.name, status: job.status, status_message: job.status_message, created_by: job.created_by,
    created_at: job.created_at, progress: job.progress, sweep_id: job.sweep_id,
    spec: { gpus, strategy, precision, lora_rank }, metrics: { [LOSS]: lossOf(job) }, loss_metric: job.loss_metric,
  };
}

/** The fields that a sweep's member changes: `lr 0.001, size 32`. */
export const memberChanges = (member) => Object.entries(member.values)
  .map(([field, value]) => `${field.split(".").at(-1)} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
