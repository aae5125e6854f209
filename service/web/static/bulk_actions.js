// Actions on the selected jobs: tag, archive, retry, cancel, delete.

import { urlOf } from "./address.js";
import { call, query } from "./api.js";
import { TERMINAL } from "./job_status.js";
import { byId, confirmAction, mayChange, openDialog, setText, toast, within } from "./page.js";

const AT_ONCE = 4; // requests at a time
const MAX_COMPARED = 20;

/** @param {Row} job */
const own = (job) => mayChange(job.created_by);
/** @param {Row} job */
const ended = (job) => own(job) && TERMINAL.has(job.status);
/**
 * @param {object} body
 * @returns {SendForJob}
 */
const patch = (body) => (job) => call(`/v1/jobs/${job.id}`, { method: "PATCH", body });
/**
 * @param {string} action
 * @returns {SendForJob}
 */
const post = (action) => (job) => call(`/v1/jobs/${job.id}/${action}`, { method: "POST" });

/** @type {Record<string, BulkAction>} */
const ACTIONS = {
  tag: { allows: own, done: "tagged" },
  archive: {
    allows: (job) => ended(job) && !job.archived,
    send: patch({ archived: true }),
    done: "archived",
    undo: "restore",
  },
  restore: {
    allows: (job) => own(job) && job.archived,
    send: patch({ archived: false }),
    done: "taken out of the archive",
    undo: "archive",
  },
  retry: {
    allows: (job) => own(job) && ["failed", "cancelled"].includes(job.status),
    send: post("retry"),
    done: "queued again",
  },
  cancel: {
    allows: (job) => own(job) && !TERMINAL.has(job.status),
    send: post("cancel"),
    done: "cancelling",
    verb: "Cancel",
    warning: "Running jobs will stop. Checkpoints and metrics are kept.",
  },
  delete: {
    allows: ended,
    send: (job) => call(`/v1/jobs/${job.id}`, { method: "DELETE" }),
    done: "deleted",
    verb: "Delete",
    warning: "Permanently deletes metrics, logs, checkpoints and exported models.",
  },
};

/**
 * Show the selected jobs of the list with the actions that are possible for them, and how many others are selected.
 *
 * @param {Row[]} jobs
 * @param {number} others
 */
export function showSelected(jobs, others) {
  byId("selection").hidden = jobs.length + others === 0;
  setText(byId("selection-count"), `${jobs.length} selected`);
  byId("selection-others").hidden = others === 0;
  setText(byId("selection-others"), `${others} more not in this list, ${unchanged(others)}`);
  byId("compare").hidden = jobs.length < 2;
  byId("compare", HTMLAnchorElement).href = urlOf(
    `/compare${query({ job: jobs.slice(0, MAX_COMPARED).map((job) => job.id) })}`,
  );
  setText(byId("compare"), jobs.length > MAX_COMPARED ? `Compare the first ${MAX_COMPARED}` : "Compare");
  for (const [name, { allows }] of Object.entries(ACTIONS)) byId(name).hidden = !jobs.some(allows);
}

/**
 * Connect the buttons: `selected()` returns the jobs, `finished(name, results)` gets `{ job, answer }` of those that succeeded.
 *
 * @param {() => Row[]} selected
 * @param {FinishedBulk} finished
 */
export function connectActions(selected, finished) {
  for (const [name, action] of Object.entries(ACTIONS))
    byId(name).addEventListener("click", () => run(name, action, selected(), finished));
}

/** @param {number} size */
const unchanged = (size) => `left as ${size === 1 ? "it is" : "they are"}`;

/**
 * @param {string} name
 * @param {BulkAction} action
 * @param {Row[]} selected
 * @param {FinishedBulk} finished
 */
async function run(name, { allows, send, verb, warning }, selected, finished) {
  const jobs = selected.filter(allows);
  const left = selected.length - jobs.length;
  const title = jobs.length === 1 ? `${verb} ${jobs[0].name}?` : `${verb} ${jobs.length} jobs?`;
  if (
    verb &&
    !(await confirmAction(
      title,
      left ? `${warning} ${left} of the selected jobs: ${unchanged(left)}.` : (warning ?? ""),
      `${verb} jobs`,
      "Keep",
    ))
  )
    return;
  const request = name === "tag" ? await askForTags(jobs) : send;
  if (request) await apply(name, request, jobs, finished, left);
  // Its button may be gone with the jobs that it was for; the keyboard goes on from what is left.
  if (!document.activeElement?.checkVisibility() || document.activeElement === document.body)
    byId(byId("selection").hidden ? "table-frame" : "clear").focus();
}

/**
 * @param {string} name
 * @param {SendForJob} request
 * @param {Row[]} jobs
 * @param {FinishedBulk} finished
 */
async function apply(name, request, jobs, finished, left = 0) {
  const { done, undo } = ACTIONS[name];
  const results = await sendAll(jobs, request);
  const refused = results.flatMap(({ error }) => error ?? []);
  const succeeded = results.filter(({ error }) => !error);
  finished(name, succeeded);
  if (refused.length) toast(`${refused.length} of ${jobs.length} refused: ${refused[0].message}`, { bad: true });
  else {
    const send = undo && ACTIONS[undo].send;
    const action = send
      ? {
          label: "Undo",
          run: () =>
            apply(
              undo,
              send,
              succeeded.map(({ answer }) => answer),
              finished,
            ),
        }
      : null;
    toast(
      `${jobs.length === 1 ? jobs[0].name : `${jobs.length} jobs`}: ${done}.${left ? ` ${left} of the selected jobs: ${unchanged(left)}.` : ""}`,
      { action },
    );
  }
}

/**
 * Send a request for each job, some at a time.
 *
 * @param {Row[]} jobs
 * @param {SendForJob} request
 * @returns {Promise<SentForJob[]>}
 */
async function sendAll(jobs, request) {
  /** @type {SentForJob[]} */
  const results = [];
  const rest = [...jobs];
  const work = async () => {
    for (let job = rest.shift(); job; job = rest.shift()) {
      results.push(
        await request(job).then(
          (answer) => ({ job, answer }),
          (error) => ({ job, error }),
        ),
      );
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}

/** @param {Row[]} jobs */
async function askForTags(jobs) {
  const dialog = byId("tag-dialog", HTMLDialogElement);
  const [add, remove] = [byId("tag-add", HTMLInputElement), byId("tag-remove", HTMLInputElement)];
  setText(within(dialog, "h2"), jobs.length === 1 ? `Tags of ${jobs[0].name}` : `Tags of ${jobs.length} jobs`);
  const present = [...new Set(jobs.flatMap((job) => Object.keys(job.tags)))].sort();
  setText(within(dialog, ".hint"), present.length ? `Now: ${present.join(", ")}` : "");
  add.value = remove.value = "";
  if ((await openDialog(dialog)) !== "yes") return null;
  /** @type {Record<string, string | null>} */
  const tags = {};
  for (const part of parts(add.value)) {
    const [tag, ...value] = part.split("=");
    tags[tag.trim()] = value.join("=").trim();
  }
  for (const part of parts(remove.value)) tags[part] = null;
  return Object.keys(tags).length ? patch({ tags }) : null;
}

/** @param {string} text */
const parts = (text) =>
  text
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean);
