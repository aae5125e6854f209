// What can be done to a job, as buttons: those that its status allows, for those who may.

import { call } from "./api.js";
import { byId, confirmed, say } from "./page.js";
import { holdStreams } from "./stream.js";

const ALLOWED = {
  pause: (job) => ["queued", "submitting", "pending", "running"].includes(job.status) && job.desired === "run",
  resume: (job) => job.status === "paused" && job.desired !== "cancelled",
  retry: (job) => ["failed", "cancelled"].includes(job.status),
  cancel: (job) => !["succeeded", "failed", "cancelled", "cancelling"].includes(job.status),
  delete: (job) => ["succeeded", "failed", "cancelled"].includes(job.status),
};
const SURE = {
  cancel: ["Cancel", "The job will stop. Checkpoints and metrics are kept; you can retry it.", "Cancel the job"],
  delete: ["Delete", "Permanently deletes metrics, logs, checkpoints and the exported model.", "Delete the job"],
};
const SAID = {
  pause: "Pausing: the job saves a checkpoint and releases its resources.",
  resume: "Resuming from the last checkpoint.",
  retry: "Retrying.",
  cancel: "Cancelling.",
};

/** Show the buttons that fit the job. */
export function showActions(job) {
  for (const [name, allowed] of Object.entries(ALLOWED)) {
    const button = document.querySelector(`[data-do="${name}"]`);
    if (button) button.hidden = !allowed(job);
  }
}

/** Let the buttons act; `current()` is the job now, `changed(job)` takes it as it is afterwards. */
export function actOn(current, changed) {
  byId("actions")?.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-do]");
    if (!button) return;
    const name = button.dataset.do;
    const body = await wanted(name, current());
    if (body === null) return;
    button.disabled = true;
    try {
      const path = `/v1/jobs/${current().id}`;
      if (name === "delete") { await remove(path); return; }
      changed(await call(`${path}/${name}`, { method: "POST", body }), name, body);
      say(SAID[name]);
    } catch (error) {
      say(error.message, { bad: true });
    } finally {
      button.disabled = false;
    }
  });
}

async function remove(path) {
  const release = holdStreams();
  try {
    await call(path, { method: "DELETE" });
    location.assign("/jobs");
  } catch (error) {
    release();
    throw error;
  }
}

/** The body to send; null where it was thought better of. */
async function wanted(name, job) {
  if (SURE[name]) {
    const [verb, about, yes] = SURE[name];
    return (await confirmed(byId("sure"), `${verb} ${job.name}?`, about, yes)) ? undefined : null;
  }
  if (name !== "retry") return undefined;
  const dialog = byId("again");
  const step = job.last_checkpoint_step;
  byId("again-about").textContent = step === null ? "No checkpoint yet: restarts from step 0." : `The last checkpoint is at step ${step}. A start from scratch deletes checkpoints and metrics.`;
  dialog.returnValue = "no";
  dialog.showModal();
  const answer = await new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
  return ["checkpoint", "scratch"].includes(answer) ? { from: answer } : null;
}
