// The panel of a failed job: the error, the user's own line, the last output, and fixes as differences of the spec.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { failureText } from "./format.js";
import { byId, make, maybeById, setMessage, setText, within } from "./page.js";
import { fixView } from "./spec_changes.js";

/**
 * The title of a failure: the rank that failed first, and its host.
 *
 * @param {{ rank: number | null, host: string | null }} error
 */
export const failureTitle = (error) =>
  `${error.rank === null ? "Failed" : `First failure: rank ${error.rank}`}${error.host ? ` on ${error.host}` : ""}`;

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
  showFixes(job, fixes, !fixes.length && isOwnError(job, frame));
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
 * Show each fix as a difference of the spec that one click submits; without any, maybe a fork for corrected code.
 *
 * @param {Job} job
 * @param {Api.Fix[]} fixes
 * @param {boolean} needsCode
 */
function showFixes(job, fixes, needsCode) {
  const box = byId("fixes");
  const shown = JSON.stringify([fixes, needsCode]);
  if (box.dataset.shown === shown) return;
  box.dataset.shown = shown;
  const views = fixViews(job, fixes, { primary: true, reload: showFailure });
  const code = needsCode && maybeById("fork") ? [forkWithCode(job)] : [];
  box.replaceChildren(...views, ...code);
  box.hidden = !box.childElementCount;
}

/**
 * Views of fixes. The first is the primary one where `primary` is true.
 *
 * @param {Job} job
 * @param {Api.Fix[]} fixes
 * @param {{ primary?: boolean, reload: (job: Job) => void }} options
 */
export const fixViews = (job, fixes, { primary = false, reload }) =>
  fixes.map((fix, number) => fixView(job, fix, { primary: primary && number === 0, reload }));

/** @param {Job} job */
const forkWithCode = (job) =>
  make("a", {
    class: "button primary",
    href: urlOf(`/submit${query({ fork: job.id, replaces: job.spec.code ?? undefined })}`),
    text: "Fork with corrected code",
    title: "Opens a new job with this spec, for which you choose the folder with the corrected code",
  });
