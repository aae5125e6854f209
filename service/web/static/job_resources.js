// The dialog that lets a job go on with other resources: of the same job, whose checkpoints and curves stay.

import { call } from "./api.js";
import { byId, submitDialog } from "./page.js";

const WAITS = new Set(["queued", "submitting"]);
const NUMBERS = new Set(["time_limit_minutes", "memory_gb_per_gpu"]);

/**
 * Whether the resources of a job can be changed: nothing of it is in the scheduler.
 *
 * @param {Job} job
 */
export const mayChangeResources = (job) =>
  ["failed", "cancelled"].includes(job.status) ||
  (job.status === "paused" && job.desired !== "cancelled") ||
  (WAITS.has(job.status) && job.desired === "run");

/**
 * Ask for other resources; whether the job got some. `send(name, body)` calls an action of the job.
 *
 * @param {Job} job
 * @param {(name: string, body: object) => Promise<void>} send
 */
export async function changeResources(job, send) {
  const dialog = byId("resources", HTMLDialogElement);
  const fields = [...dialog.querySelectorAll("input[name]")];
  const before = job.spec.resources ?? {};
  for (const field of fields) field.value = before[field.name] ?? "";
  await showPartitions(dialog);
  return submitDialog(dialog, async () => {
    const values = fields.map((field) => /** @type {const} */ ([field.name, valueOf(field)]));
    const changes = Object.fromEntries(values.filter(([name, value]) => value !== (before[name] ?? null)));
    if (!Object.keys(changes).length) throw new Error("No field was changed.");
    await send(job.status === "paused" ? "resume" : "retry", { resources: changes });
  });
}

/** @param {HTMLInputElement} field */
const valueOf = ({ name, value }) => (value.trim() === "" ? null : NUMBERS.has(name) ? Number(value) : value.trim());

/**
 * Propose the partitions of the cluster; without any, jobs run on this machine and have a time limit alone.
 *
 * @param {HTMLDialogElement} dialog
 */
async function showPartitions(dialog) {
  const { backend, partitions } = await call("/v1/cluster").catch(() => ({ backend: null, partitions: [] }));
  byId("partitions").replaceChildren(
    ...partitions.map(
      (/** @type {Api.PartitionResource} */ { name, state }) =>
        new Option(state === "up" ? name : `${name} (${state})`, name),
    ),
  );
  for (const label of dialog.querySelectorAll("label[data-cluster]")) label.hidden = backend === "local";
}
