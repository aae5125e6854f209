// Differences of a spec: for each field its old and its new value, and a button that submits exactly these.

import { urlOf } from "./address.js";
import { ApiError, call, newKey } from "./api.js";
import { exactValue } from "./format.js";
import { make, maybeById, setText, toastError } from "./page.js";

const SHORT = 60; // characters of a value that are shown at first

/**
 * The text of a value: the beginning of a long one, and all of it once it is opened.
 *
 * @param {string} text
 * @param {number} [length]
 */
export const shortened = (text, length = SHORT) =>
  text.length <= length
    ? text
    : make(
        "details",
        { class: "long-value" },
        make("summary", { text: `${text.slice(0, length)}…`, title: "Show all of it" }),
        make("span", { text }),
      );

/**
 * The fields in which specs differ, with the words of the reference below each.
 *
 * @param {SpecDifference[]} changes
 * @param {string} [note] follows the first.
 */
export const changeList = (changes, note = "") =>
  make(
    "dl",
    { class: "spec-changes" },
    ...changes.map(({ field, before, after, meaning }, n) =>
      make(
        "div",
        {},
        make("dt", { class: "mono", text: field }),
        make(
          "dd",
          { class: "mono" },
          make("del", {}, make("span", { class: "visually-hidden", text: "from " }), shortened(exactValue(before))),
          make("span", { "aria-hidden": "true", text: "→" }),
          make("ins", {}, make("span", { class: "visually-hidden", text: "to " }), shortened(exactValue(after))),
        ),
        note && n === 0 ? make("dd", { text: note }) : null,
        meaning ? make("dd", { class: "hint", text: meaning }) : null,
      ),
    ),
  );

/**
 * The differences that setting fields makes to a spec.
 *
 * @param {Record<string, any>} spec
 * @param {Record<string, any>} fields
 * @returns {SpecDifference[]}
 */
export const differencesOf = (spec, fields) =>
  Object.entries(fields).map(([field, after]) => ({ field, before: valueAt(spec, field), after }));

/**
 * @param {any} spec
 * @param {string} path
 */
const valueAt = (spec, path) => path.split(".").reduce((value, name) => value?.[name], spec) ?? null;

/**
 * What a fix sets: `optimizer.lr = 0.1`.
 *
 * @param {Pick<Api.Fix, "fields">} fix
 */
export const fixLabel = ({ fields }) =>
  Object.entries(fields)
    .map(([path, value]) => `${path} = ${exactValue(value)}`)
    .join(", ");

/**
 * The address of the submit page with a fork of a job whose fields have other values.
 *
 * @param {string} jobId
 * @param {Pick<Api.Fix, "fields">} fix
 */
export function fixAddress(jobId, { fields }) {
  const parameters = new URLSearchParams({ fork: jobId });
  for (const [path, value] of Object.entries(fields)) parameters.append("set", `${path}=${JSON.stringify(value)}`);
  return urlOf(`/submit?${parameters}`);
}

/**
 * A fix: its differences, a button that submits them as a new job, and a link to change the spec further before. After a
 * conflict, `reload` gets the job as it is now, whose fixes are shown anew.
 *
 * @param {Job} job
 * @param {Api.Fix} fix
 * @param {{ primary?: boolean, reload: (job: Job) => void }} options
 */
export function fixView(job, fix, { primary = false, reload }) {
  const problem = make("p", { class: "problem", role: "alert" });
  return make(
    "div",
    { class: "fix" },
    changeList(fix.changes, fix.note),
    maybeById("fork") ? buttons(job, fix, primary, problem, reload) : null,
    problem,
  );
}

/**
 * @param {Job} job
 * @param {Api.Fix} fix
 * @param {boolean} primary
 * @param {HTMLElement} problem
 * @param {(job: Job) => void} reload
 */
function buttons(job, fix, primary, problem, reload) {
  /** @type {string | null} */
  let key = null; // of a submission whose answer may have been lost
  const submit = make("button", {
    type: "button",
    class: primary ? "primary" : false,
    text: `Submit with ${fixLabel(fix)}`,
    title: "Submits a new job with exactly these differences from this job's spec",
    onclick: async () => {
      submit.disabled = true;
      setText(problem, "");
      key ??= newKey();
      try {
        const changes = fix.changes.map(({ field, before, after }) => ({ field, before, after }));
        const made = await call(`/v1/jobs/${job.id}/changes`, {
          method: "POST",
          body: { changes },
          headers: { "Idempotency-Key": key },
        });
        location.assign(urlOf(`/jobs/${encodeURIComponent(made.id)}`));
      } catch (error) {
        submit.disabled = false;
        if (error instanceof ApiError && error.status < 500) key = null; // it was refused: the next one is new
        if (error instanceof ApiError && error.code === "job_changed") {
          toastError(error);
          reload(await call(`/v1/jobs/${job.id}`));
        } else setText(problem, messageOf(error));
      }
    },
  });
  return make(
    "div",
    { class: "buttons" },
    submit,
    make("a", { class: "button quiet", href: fixAddress(job.id, fix), text: "Edit first" }),
  );
}

/** @param {any} error */
const messageOf = ({ message, problems = [] }) =>
  problems.length ? problems.map((/** @type {Problem} */ one) => `${one.param}: ${one.message}`).join("; ") : message;
