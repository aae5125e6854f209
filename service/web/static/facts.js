// What a job's page says of it in words and numbers; `service/web/pages/job_view.py` draws the same at first.

import { count, duration, madeOf, NOTHING, number, size } from "./format.js";
import { byId, setText } from "./page.js";
import { done, LOSS, tone } from "./rows.js";

/** What it is doing, or why it waits. */
export function sentence(job) {
  let words = job.status_message || job.status;
  const progress = job.progress;
  if (job.status === "running" && progress) {
    words += `: step ${count(progress.step)} of ${count(progress.total_steps)}`;
    if (progress.eta_seconds !== null && progress.eta_seconds !== undefined) words += `, about ${duration(progress.eta_seconds)} left`;
  }
  if (job.status === "running" && !progress && !["script", "comm_check"].includes(job.spec.task)) words += "; no steps yet";
  return `${words[0].toUpperCase()}${words.slice(1)}.`;
}

/** Fill everything above the curves. */
export function showJob(job) {
  const chip = byId("status");
  setText(chip, job.status);
  chip.className = `chip ${tone(job.status)}`;
  setText(byId("sentence"), sentence(job));
  const percent = done(job) * 100;
  byId("progress").firstElementChild.style.width = `${percent.toFixed(1)}%`;
  byId("progress").setAttribute("aria-valuenow", String(Math.round(percent)));
  for (const [name, value] of Object.entries(facts(job))) setText(byId(`fact-${name}`), value);
  showFailure(job.error);
}

function facts(job) {
  const progress = job.progress;
  return {
    step: progress ? `${count(progress.step)} / ${count(progress.total_steps)}` : NOTHING,
    left: progress ? duration(progress.eta_seconds) : NOTHING,
    ran: ranFor(job),
    loss: number(job.metrics[LOSS]),
    checkpoint: job.last_checkpoint_step === null ? NOTHING : `step ${count(job.last_checkpoint_step)}`,
    where: job.attempt?.nodes?.length ? job.attempt.nodes.join(", ") : NOTHING,
    gpus: String(job.spec.gpus ?? 1),
    made: madeOf(job.spec),
    disk: size(job.disk_bytes),
  };
}

/** Since its first start, to its end or to now. */
function ranFor(job) {
  if (!job.started_at) return NOTHING;
  return duration(((job.finished_at ? Date.parse(job.finished_at) : Date.now()) - Date.parse(job.started_at)) / 1000);
}

function showFailure(error) {
  byId("failure").hidden = !error;
  if (!error) return;
  const rank = error.rank === null ? "Failed" : `First failure: rank ${error.rank}`;
  setText(byId("failed-where"), `${rank}${error.host ? ` on ${error.host}` : ""}`);
  setText(byId("failed-what"), `${error.type}: ${error.message}`);
  byId("failed-hint").hidden = !error.hint;
  setText(byId("failed-hint").querySelector("span"), error.hint ?? "");
  byId("failed-trace").hidden = !error.traceback;
  setText(byId("failed-trace").querySelector("pre"), error.traceback ?? "");
}
