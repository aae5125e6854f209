// The fields of jobs that the table shows.

import { failureHeadline } from "./format.js";

export const LOSS = "train/loss";
/** Begins the keys that stand for a metric even before any job has reported it. */
export const METRIC = "metrics.";
const MAX_CAUSE = 1000; // characters
/** What the training loss is called, whichever metric it is; the command line has the same name. */
export const TRAIN_LOSS = "Train loss";

/**
 * The name of a metric that jobs are ranked by: `Train loss` if it is that of some of them, else its own.
 *
 * @param {string} metric
 * @param {{ loss_metric: string | null }[]} jobs
 */
export const shownName = (metric, jobs) =>
  metric === LOSS || jobs.some((job) => job.loss_metric && job.loss_metric === metric) ? TRAIN_LOSS : metric;

/**
 * The newest loss of a job, whatever its program calls it; null if it has none.
 *
 * @param {JobLike} job
 * @returns {number | string | null}
 */
export const lossOf = (job) => job.metrics?.[job.loss_metric ?? LOSS] ?? null;

/**
 * The fraction of a job's steps that are done, 0 to 1.
 *
 * @param {{ progress: Api.JobProgress | null }} job
 */
export const fractionDone = (job) =>
  job.progress?.total_steps ? Math.min(1, job.progress.step / job.progress.total_steps) : 0;

/**
 * The ETA of a job's progress in seconds; null if it is unknown.
 *
 * @param {Api.JobProgress | null} progress
 */
export const etaOf = (progress) => progress?.eta_seconds ?? null;

/**
 * The seconds from the first start of a job to its end, or until now; null if it has not started. As in trainyard/contract/runtime.py.
 *
 * @param {{ started_at: string | null, finished_at: string | null }} job
 */
export function runtimeOf(job) {
  if (!job.started_at) return null;
  return Math.max(
    0,
    ((job.finished_at ? Date.parse(job.finished_at) : Date.now()) - Date.parse(job.started_at)) / 1000,
  );
}

/**
 * What the table shows of a job besides its fields: why it failed, and the last value of its evaluation among its values.
 *
 * @param {EmbeddedJob} job
 */
function derivedFields({ error, evaluation_metric: evaluation, metrics, values }) {
  const named = Object.entries(values ?? {})
    .filter(([key]) => key.startsWith(METRIC))
    .map(([key, value]) => [key.slice(METRIC.length), value]);
  return {
    cause: error ? failureHeadline(error).slice(0, MAX_CAUSE) : null,
    evaluation_metric: evaluation,
    values: { ...(evaluation && { [evaluation]: metrics[evaluation] }), ...values, ...Object.fromEntries(named) },
  };
}

/**
 * The metric of the evaluations of most of these jobs; null if none has one. Of equally frequent ones the first.
 *
 * @param {{ evaluation_metric: string | null }[]} jobs
 * @returns {string | null}
 */
export function evaluationOf(jobs) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { evaluation_metric: name } of jobs) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].reduce((most, one) => (one[1] > most[1] ? one : most), ["", 0])[0] || null;
}

/**
 * The row of a job of the page's data, whose fields are those of the table.
 *
 * @param {EmbeddedJob} job
 * @returns {Row}
 */
export const embeddedRow = (job) => ({ ...job, ...derivedFields(job) });

/**
 * The fields of a job that the table shows, so that 10,000 jobs take little memory. The loss has one name for all jobs.
 *
 * @param {Job} job
 * @returns {Row}
 */
export function rowFields(job) {
  const { gpus, strategy, precision, lora_rank } = job.spec;
  return {
    id: job.id,
    name: job.name,
    project: job.project,
    status: job.status,
    status_message: job.status_message,
    created_by: job.created_by,
    created_at: job.created_at,
    started_at: job.started_at,
    finished_at: job.finished_at,
    progress: job.progress,
    sweep_id: job.sweep_id,
    tags: job.tags,
    notes: job.notes,
    archived: job.archived,
    ...derivedFields(job),
    spec: { gpus, strategy, precision, lora_rank },
    metrics: { [LOSS]: lossOf(job) },
    loss_metric: job.loss_metric,
  };
}

/**
 * The fields of a row that an event with metrics changes, and the new loss of the job.
 *
 * @param {Row} job
 * @param {MetricsReport} report
 */
export function metricsChange(job, { values, loss_metric, progress }) {
  const loss = values[loss_metric ?? LOSS];
  const evaluation = job.evaluation_metric;
  return {
    loss,
    progress,
    ...(loss !== undefined && { metrics: { [LOSS]: loss }, loss_metric }),
    ...(evaluation !== null && evaluation in values && { values: { ...job.values, [evaluation]: values[evaluation] } }),
  };
}

/**
 * Whether one of these metrics may be that of the job's evaluations, which the service chooses.
 *
 * @param {object} values
 */
export const mayEvaluate = (values) => Object.keys(values).some((name) => /(^|[^a-z])(eval|val|dev|test)/i.test(name));

/**
 * Runs, `{ id, name }`; those of one name have after it what `textOf` returns, unless two have the same, then the end of their id.
 *
 * @template {{ id: string, name: string }} T
 * @param {T[]} runs
 * @param {(run: T) => string} [textOf]
 * @returns {T[]}
 */
export function withDistinctNames(runs, textOf = () => "") {
  /** @type {Map<T, string>} */
  const names = new Map();
  for (const namesakes of Map.groupBy(runs, ({ name }) => name).values()) {
    if (namesakes.length < 2) continue;
    const texts = namesakes.map(textOf);
    const differ = new Set(texts).size === texts.length;
    namesakes.forEach((run, n) => names.set(run, `${run.name} ${differ ? texts[n] : `…${run.id.slice(-4)}`}`));
  }
  return runs.map((run) => (names.has(run) ? { ...run, name: names.get(run) ?? run.name } : run));
}
