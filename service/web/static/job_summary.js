// The upper part of a job's page: status, summary, progress bar, facts and failure.

import { showAbout } from "./job_about.js";
import { STEPLESS } from "./chart_list.js";
import {
  approximate,
  bytes,
  count,
  duration,
  failureText,
  NOTHING,
  nodeNames,
  number,
  stepText,
  strategyLabel,
} from "./format.js";
import { etaOf, fractionDone, lossOf, runtimeOf, TRAIN_LOSS } from "./job_rows.js";
import { tone } from "./job_status.js";
import { fixViews, showFailure } from "./job_failure.js";
import { byId, data, make, parts, setMessage, setText, within } from "./page.js";

/**
 * One sentence about what the job does, or why it waits.
 *
 * @param {Job} job
 */
export function summary(job) {
  const progress = job.progress;
  if (job.status === "failed" && job.error)
    return `Failed${progress?.step ? ` after step ${stepText(progress, " of ")}` : ""}.`; // the panel below states the error
  let text = (job.status_message || job.status).replace(/\.$/, "");
  if (job.status === "running" && progress) {
    text += `: step ${stepText(progress, " of ")}`;
    if (phaseOf(progress)) text += `; ${phaseOf(progress)}`;
    if (etaOf(progress) !== null) text += `, about ${duration(progress.eta_seconds)} left`;
  }
  if (job.status === "running" && !progress && !STEPLESS.includes(job.spec.task)) text += " (no steps yet)";
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/**
 * What a run does beside training: `evaluating 120 of 800`; empty while it trains.
 *
 * @param {Api.JobProgress} progress
 */
function phaseOf(progress) {
  const { phase, phase_done: done, phase_total: total } = progress;
  if (!phase || phase === "training") return "";
  return total ? `${phase} ${count(done)} of ${count(total)}` : phase;
}

/**
 * The phase of a running job; nothing for programs that report none.
 *
 * @param {Job} job
 */
function phaseFact(job) {
  if (job.status !== "running" || STEPLESS.includes(job.spec.task)) return NOTHING;
  return job.progress ? phaseOf(job.progress) || "training" : "starting";
}

/**
 * What selects a job's best checkpoint, by default the lowest evaluation loss; as in service/checkpoints/ranking.py.
 *
 * @param {Record<string, any>} spec
 */
const criterionOf = (spec) => spec.checkpoint?.keep_best ?? { metric: "eval/loss", mode: "min" };

/**
 * The best evaluation as a sentence, empty without one. Of equal values, that of the later step.
 *
 * @param {Job} job
 * @param {Map<string, Points>} series
 */
function bestText({ spec }, series) {
  const { metric, mode } = criterionOf(spec);
  const { steps, values } = series.get(metric) ?? { steps: [], values: [] };
  const sign = mode === "max" ? 1 : -1;
  const best = values.reduce(
    (found, value, n) => (Number.isNaN(value) || (found !== null && sign * value < sign * values[found]) ? found : n),
    /** @type {number | null} */ (null),
  );
  return best === null ? "" : `Best ${metric}: ${number(values[best])} at step ${count(steps[best])}.`;
}

/**
 * Show everything above the curves; `series` has the curves by metric.
 *
 * @param {Job} job
 * @param {Map<string, Points>} series
 */
export function showJob(job, series) {
  const chip = byId("status");
  setText(chip, job.status);
  chip.className = `chip ${tone(job.status)}`;
  setMessage(byId("summary"), `${summary(job)} ${bestText(job, series)}`.trim());
  const percent = fractionDone(job) * 100;
  byId("progress").hidden = Boolean(job.progress && !job.progress.total_steps);
  within(byId("progress"), "*").style.width = `${percent.toFixed(1)}%`;
  byId("progress").setAttribute("aria-valuenow", String(Math.round(percent)));
  showFacts("headline", headlineOf(job));
  showFacts("facts", factsOf(job));
  showCause(job);
  showAbout(job);
  showParameters(job);
  showFailure(job);
  showAdvice(job);
}

/**
 * Show what would make the job faster or cheaper.
 *
 * @param {Job} job
 */
function showAdvice(job) {
  const advice = job.advice ?? [];
  const list = byId("advice");
  const shown = JSON.stringify(advice);
  list.hidden = advice.length === 0;
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  list.replaceChildren(
    ...advice.map(({ message, fix }) =>
      make("li", {}, ...parts(message), ...fixViews(job, fix ? [fix] : [], { reload: showAdvice })),
    ),
  );
}

/**
 * Show what the program reported about itself: parameters and tags.
 *
 * @param {Job} job
 */
function showParameters(job) {
  const rows = [
    ...Object.entries(job.parameters ?? {}).map(([name, value]) => [
      name,
      typeof value === "string" ? value : JSON.stringify(value),
    ]),
    ...Object.entries(job.tags ?? {}).map(([name, value]) => [`${name} (tag)`, value]),
  ];
  byId("parameters").hidden = rows.length === 0;
  const body = within(byId("parameters"), "tbody");
  if (body.dataset.rows === JSON.stringify(rows)) return; // an update must not end a selection of text
  body.dataset.rows = JSON.stringify(rows);
  body.replaceChildren(
    ...rows.map(([name, value]) =>
      make("tr", {}, make("td", { class: "mono", text: name }), make("td", { class: "mono", text: value })),
    ),
  );
}

/**
 * Show why a job failed in one line, on all tabs.
 *
 * @param {Job} job
 */
function showCause({ status, error }) {
  const cause = byId("cause");
  cause.hidden = status !== "failed" || !error;
  if (error) setText(cause, failureText(error).split("\n", 1)[0]);
}

/**
 * @param {string} listId
 * @param {[string, string, string][]} facts
 */
function showFacts(listId, facts) {
  const list = byId(listId);
  if (!list.childElementCount) {
    list.append(
      ...facts.map(([id, label]) => make("div", {}, make("dt", { text: label }), make("dd", { id: `fact-${id}` }))),
    );
  }
  for (const [id, , value] of facts) {
    setText(byId(`fact-${id}`), value);
    if (id === "eta") within(list, `:has(> #fact-${id})`).hidden = value === NOTHING; // of a job that has ended
  }
}

/**
 * The facts about a job that stay in sight: id, label and value of each.
 *
 * @param {Job} job
 * @returns {[string, string, string][]}
 */
export const headlineOf = (job) => [
  ["step", "Step", job.progress ? stepText(job.progress) : NOTHING],
  ["eta", "ETA", etaOf(job.progress) === null ? NOTHING : approximate(etaOf(job.progress) ?? 0)],
  ["loss", TRAIN_LOSS, number(lossOf(job))],
];

/**
 * The other facts about a job.
 *
 * @param {Job} job
 * @returns {[string, string, string][]}
 */
export function factsOf(job) {
  return [
    ["phase", "Phase", phaseFact(job)],
    ["runtime", "Runtime", duration(runtimeOf(job))],
    [
      "checkpoint",
      "Checkpoint",
      job.last_checkpoint_step === null ? NOTHING : `step ${count(job.last_checkpoint_step)}`,
    ],
    ["nodes", "Nodes", nodeNames(job.attempt?.nodes ?? []) || NOTHING],
    ["gpus", data.accelerator === "cpu" ? "CPU processes" : "GPUs", String(job.spec.gpus ?? 1)],
    ["strategy", "Strategy", strategyLabel(job.spec) || NOTHING],
    ["disk", "On disk", bytes(job.disk_bytes)],
  ];
}
