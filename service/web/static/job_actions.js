// The buttons that change a job: those that its status allows, for users who may change it.

import { urlOf } from "./address.js";
import { call } from "./api.js";
import { failureSummary, fixViews } from "./job_failure.js";
import { changeResources, mayChangeResources } from "./job_resources.js";
import { around, byId, confirmAction, maybeById, openDialog, toast, toastError, within } from "./page.js";
import { pauseReads } from "./read_pause.js";

/** @type {Record<string, (job: Job) => boolean>} */
const ALLOWED = {
  pause: (job) => ["queued", "submitting", "pending", "running"].includes(job.status) && job.desired === "run",
  resume: (job) => job.status === "paused" && job.desired !== "cancelled",
  retry: (job) => ["failed", "cancelled"].includes(job.status),
  resources: mayChangeResources,
  cancel: (job) => !["succeeded", "failed", "cancelled", "cancelling"].includes(job.status),
  delete: (job) => ["succeeded", "failed", "cancelled"].includes(job.status),
};
/** @type {Record<string, [string, string, string]>} */
const CONFIRMATIONS = {
  cancel: ["Cancel", "The job will stop. Checkpoints and metrics are kept; you can retry it.", "Cancel the job"],
  delete: ["Delete", "Permanently deletes metrics, logs, checkpoints and the exported model.", "Delete the job"],
};
/** @type {Record<string, string>} */
const TOASTS = {
  pause: "Pausing: the job saves a checkpoint and releases its resources.",
  resume: "Resuming from the last checkpoint.",
  retry: "The job runs again.",
  cancel: "Cancelling.",
};

/**
 * Show the buttons that the job's status allows.
 *
 * @param {Job} job
 */
export function showActions(job) {
  for (const [name, allowed] of Object.entries(ALLOWED)) {
    const button = document.querySelector(`[data-action="${name}"]`);
    if (button) button.hidden = !allowed(job);
  }
}

/**
 * Connect the buttons. `current()` is the job; `changed(job, name, body)` gets the job that an action returned.
 *
 * @param {() => Job} current
 * @param {(job: Job, name: string, body: any) => void} changed
 */
export function connectActions(current, changed) {
  const menu = maybeById("more", HTMLDetailsElement);
  menu?.addEventListener("click", (event) => {
    if (around(event, "button")) menu.open = false;
  });
  maybeById("actions")?.addEventListener("click", async (event) => {
    const button = around(event, "button[data-action]");
    const action = button?.dataset.action;
    if (!button || !action) return;
    const path = `/v1/jobs/${current().id}`;
    const send = async (/** @type {string} */ name, /** @type {object | undefined} */ body) => {
      changed(await call(`${path}/${name}`, { method: "POST", body }), name, body);
      toast(TOASTS[name]);
    };
    if (action === "resources") {
      await changeResources(current(), send);
      return;
    }
    const request = await requestOf(action, current());
    if (request === null) return;
    button.disabled = true;
    try {
      await (request[0] === "delete" ? deleteJob(path) : send(...request));
    } catch (error) {
      toastError(error);
    } finally {
      button.disabled = false;
    }
  });
}

/** @param {string} path */
async function deleteJob(path) {
  const resume = pauseReads();
  try {
    await call(path, { method: "DELETE" });
    location.assign(urlOf("/jobs"));
  } catch (error) {
    resume();
    throw error;
  }
}

/**
 * The name of an action and the body of its request, undefined if it has none; null if the user did not confirm it.
 *
 * @param {string} name
 * @param {Job} job
 * @returns {Promise<[string, object?] | null>}
 */
async function requestOf(name, job) {
  if (CONFIRMATIONS[name]) {
    const [title, text, verb] = CONFIRMATIONS[name];
    return (await confirmAction(`${title} ${job.name}?`, text, verb, "Keep job")) ? [name] : null;
  }
  if (name !== "retry") return [name];
  const dialog = byId("retry", HTMLDialogElement);
  showRetry(dialog, job);
  const answer = await openDialog(dialog);
  return ["checkpoint", "scratch"].includes(answer) ? [name, { from: answer }] : null;
}

/**
 * What a retry would do: without a checkpoint it starts anew, and where it would fail again, a fix comes first.
 *
 * @param {HTMLDialogElement} dialog
 * @param {Job} job
 */
function showRetry(dialog, job) {
  const step = job.last_checkpoint_step;
  const { fixes, repeats } = failureSummary(job);
  const fix = repeats && maybeById("fork") ? fixes[0] : undefined;
  const start =
    step === null
      ? "No checkpoint yet: restarts from step 0."
      : `The last checkpoint is at step ${step}. A start from scratch deletes checkpoints and metrics.`;
  within(dialog, "p").textContent =
    repeats && job.status === "failed" ? `Without a change, it is likely to fail in the same way. ${start}` : start;
  const [scratch, checkpoint] = [within(dialog, '[value="scratch"]'), within(dialog, '[value="checkpoint"]')];
  const better = byId("retry-fix");
  checkpoint.hidden = step === null;
  scratch.className = step !== null ? "danger" : fix ? "" : "primary";
  checkpoint.className = fix ? "" : "primary";
  better.hidden = !fix;
  const options = { primary: true, reload: (/** @type {Job} */ now) => showRetry(dialog, now) };
  better.replaceChildren(...fixViews(job, fix ? [fix] : [], options));
}
