// The upper part of a job's page: status, summary, progress bar, facts and failure.

import { STEPLESS } from "./chart_list.js";
import { bytes, count, duration, NOTHING, number, stepText, strategyLabel } from "./format.js";
import { etaOf, fractionDone, lossOf } from "./job_rows.js";
import { tone } from "./job_status.js";
import { byId, make, setText } from "./page.js";

/** One sentence about what the job does, or why it waits. */
export function summary(job) {
  let text = (job.status_message || job.status).replace(/\.$/, "");
  const progress = job.progress;
  if (job.status === "running" && progress) {
    text += `: step ${stepText(progress, " of ")}`;
    if (etaOf(progress) !== null) text += `, about ${duration(progress.eta_seconds)} left`;
  }
  if (job.status === "running" && !progress && !STEPLESS.includes(job.spec.task)) text += "; no steps yet";
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** Show everything above the curves. */
export function showJob(job) {
  const chip = byId("status");
  setText(chip, job.status);
  chip.className = `chip ${tone(job.status)}`;
  setText(byId("summary"), summary(job));
  const percent = fractionDone(job) * 100;
  byId("progress").hidden = Boolean(job.progress) && !job.progress.total_steps;
  byId("progress").firstElementChild.style.width = `${percent.toFixed(1)}%`;
  byId("progress").setAttribute("aria-valuenow", String(Math.round(percent)));
  showFacts(job);
  showParameters(job);
  showFailure(job.error);
}

/** Show what the program reported about itself: parameters, tags and notes. */
function showParameters(job) {
  const rows = [
    ...Object.entries(job.parameters ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
    ...Object.entries(job.tags ?? {}).map(([name, value]) => [`${name} (tag)`, value]),
  ];
  byId("parameters").hidden = rows.length === 0 && !job.notes;
  setText(byId("notes"), job.notes ?? "");
  const body = byId("parameters").querySelector("tbody");
  if (body.dataset.rows === JSON.stringify(rows)) return; // an update must not end a selection of text
  body.dataset.rows = JSON.stringify(rows);
  body.replaceChildren(...rows.map(([name, value]) => make("tr", {}, make("td", { class: "mono", text: name }), make("td", { class: "mono", text: value }))));
}

function showFacts(job) {
  const facts = factsOf(job);
  if (!byId("facts").childElementCount) {
    byId("facts").append(...facts.map(([id, label]) => make("div", {}, make("dt", { text: label }), make("dd", { id: `fact-${id}` }))));
  }
  for (const [id, , value] of facts) setText(byId(`fact-${id}`), value);
}

/** The facts about a job: id, label and value of each. */
export function factsOf(job) {
  const progress = job.progress;
  return [
    ["step", "Step", progress ? stepText(progress) : NOTHING],
    ["eta", "ETA", duration(etaOf(progress))],
    ["runtime", "Runtime", runtime(job)],
    ["loss", "Loss", number(lossOf(job))],
    ["checkpoint", "Checkpoint", job.last_checkpoint_step === null ? NOTHING : `step ${count(job.last_checkpoint_step)}`],
    ["nodes", "Nodes", job.attempt?.nodes?.join(", ") || NOTHING],
    ["gpus", "GPUs", String(job.spec.gpus ?? 1)],
    ["strategy", "Strategy", strategyLabel(job.spec)],
    ["disk", "On disk", bytes(job.disk_bytes)],
  ];
}

/** The time from the first start of a job to its end, or until now. */
function runtime(job) {
  if (!job.started_at) return NOTHING;
  return duration(((job.finished_at ? Date.parse(job.finished_at) : Date.now()) - Date.parse(job.started_at)) / 1000);
}

/** The title of a failure: the rank that failed first, and its host. */
export const failureTitle = (error) => `${error.rank === null ? "Failed" : `First failure: rank ${error.rank}`}${error.host ? ` on ${error.host}` : ""}`;

function showFailure(error) {
  byId("failure").hidden = !error;
  if (!error) return;
  setText(byId("failure-title"), failureTitle(error));
  setText(byId("failure-message"), `${error.type}: ${error.message}`);
  byId("failure-hint").hidden = !error.hint;
  setText(byId("failure-hint").querySelector("span"), error.hint ?? "");
  byId("failure-traceback").hidden = !error.traceback;
  setText(byId("traceback"), error.traceback ?? "");
}
