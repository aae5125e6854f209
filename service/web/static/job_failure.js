// The panel of a failed job: the error, the user's own line, the last output, and forks with a fix.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { failureText, specValue } from "./format.js";
import { byId, make, maybeById, setMessage, setText, within } from "./page.js";

/**
 * The title of a failure: the rank that failed first, and its host.
 *
 * @param {{ rank: number | null, host: string | null }} error
 */
export const failureTitle = (error) =>
  `${error.rank === null ? "Failed" : `First failure: rank ${error.rank}`}${error.host ? ` on ${error.host}` : ""}`;

/**
 * The changed fields of a fix: `optimizer.lr = 0.1`.
 *
 * @param {Api.Fix} fix
 */
export const fixLabel = ({ fields }) =>
  Object.entries(fields)
    .map(([path, value]) => `${path} = ${specValue(value)}`)
    .join(", ");

/**
 * The address of the submit page with a fork of a job whose fields have other values.
 *
 * @param {string} jobId
 * @param {Api.Fix} fix
 */
export function fixAddress(jobId, { fields }) {
  const parameters = new URLSearchParams({ fork: jobId });
  for (const [path, value] of Object.entries(fields)) parameters.append("set", `${path}=${JSON.stringify(value)}`);
  return urlOf(`/submit?${parameters}`);
}

/**
 * The summary of a failure; an empty one while the job has none.
 *
 * @param {Job} job
 * @returns {Api.FailureSummary}
 */
export const failureSummary = (job) =>
  job.failure_summary ?? { frame: null, is_traceback: false, last_lines: [], fixes: [], repeats: false };

/**
 * Show the panel, if the job has an error. An update must not end a selection of text.
 *
 * @param {Job} job
 */
export function showFailure(job) {
  const { error } = job;
  byId("failure").hidden = !error;
  if (!error) return;
  const { frame, is_traceback: isTraceback, last_lines: lines, fixes } = failureSummary(job);
  setText(byId("failure-title"), failureTitle(error));
  setMessage(byId("failure-message"), failureText(error));
  byId("failure-frame").hidden = !frame;
  setText(byId("failure-place"), frame ? `${frame.file}, line ${frame.line}, in ${frame.function}` : "");
  byId("failure-source").hidden = !frame?.source;
  setText(byId("failure-source"), frame?.source ?? "");
  byId("failure-output").hidden = lines.length === 0;
  setText(byId("failure-lines"), lines.join("\n"));
  byId("failure-hint").hidden = !error.hint;
  setMessage(within(byId("failure-hint"), "span"), error.hint ?? "");
  showForks(
    job,
    fixes.length || !isOwnError(job, frame) ? fixes.map((fix) => forkWith(job, fix)) : [forkWithCode(job)],
  );
  byId("failure-traceback").hidden = !error.traceback;
  setText(within(byId("failure-traceback"), "summary"), isTraceback ? "Whole traceback" : "More output");
  setText(byId("traceback"), error.traceback ?? "");
}

/**
 * Whether the program of the user failed, and not what it ran on: its code is to be corrected.
 *
 * @param {Job} job
 * @param {Api.Frame | null} frame
 */
const isOwnError = (job, frame) => job.status_reason === "error" && (frame !== null || job.spec.task === "script");

/**
 * @param {Job} job
 * @param {Api.Fix} fix
 */
const forkWith = (job, fix) => ({
  href: fixAddress(job.id, fix),
  title: fix.note || undefined,
  text: `Fork with ${fixLabel(fix)}`,
});

/** @param {Job} job */
const forkWithCode = (job) => ({
  href: urlOf(`/submit${query({ fork: job.id, replaces: job.spec.code ?? undefined })}`),
  text: "Fork with corrected code",
  title: "Opens a new job with this spec, for which you choose the folder with the corrected code",
});

/**
 * @param {Job} job
 * @param {Fork[]} forks
 */
function showForks(job, forks) {
  const box = byId("fixes");
  const shown = JSON.stringify(forks);
  box.hidden = forks.length === 0 || !maybeById("fork");
  if (box.dataset.shown === shown) return;
  box.dataset.shown = shown;
  box.replaceChildren(
    ...forks.map((fork, number) => make("a", { class: number ? "button" : "button primary", ...fork })),
  );
}
