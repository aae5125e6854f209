// What a job is called: its tags, notes and metadata, and the dialog that changes them.

import { urlOf } from "./address.js";
import { call } from "./api.js";
import { markdown } from "./markdown.js";
import { byId, make, maybeById, setText, submitDialog, toast, within } from "./page.js";

const MAX_LABEL = 24;
const FORKED_FROM = "forked_from"; // trainyard.contract.wire.lineage

/** @type {string | undefined} */
let shown;

/**
 * Show the name, tags, notes and metadata of a job.
 *
 * @param {Job} job
 */
export function showAbout(job) {
  const state = JSON.stringify([job.name, job.tags, job.notes, job.metadata, job.archived]);
  if (state === shown) return; // an update must not end a selection of text
  shown = state;
  setText(within(document, "h1"), job.name);
  within(document, "h1").title = job.name;
  const labels = Object.entries(job.metadata ?? {}).map(([name, value]) => label(name, value));
  const tags = Object.entries(job.tags ?? {}).map(([name, value]) =>
    make("span", { class: "tag", text: value ? `${name}=${value}` : name }),
  );
  byId("tags").replaceChildren(
    ...(job.archived ? [make("span", { class: "tag", text: "archived" })] : []),
    ...tags,
    ...labels,
  );
  byId("notes").replaceChildren(...markdown(job.notes ?? ""));
  byId("notes").hidden = !job.notes;
}

/**
 * An entry of a job's metadata. A long value is shortened; the job from which this one was forked is a link.
 *
 * @param {string} name
 * @param {string} value
 */
function label(name, value) {
  const text = value.length > MAX_LABEL ? `${value.slice(0, MAX_LABEL)}…` : value;
  const isJob = name === FORKED_FROM && /^job_\w+$/.test(value);
  return make(
    "span",
    { class: "tag metadata", title: `metadata: ${name}: ${value}` },
    `${name}: `,
    isJob ? make("a", { href: urlOf(`/jobs/${value}`), text: `…${value.slice(-6)}` }) : text,
  );
}

/**
 * Connect the button that changes them; `changed(job)` gets the job afterwards.
 *
 * @param {() => Job} current
 * @param {(job: Job) => void} changed
 */
export function connectAbout(current, changed) {
  maybeById("edit")?.addEventListener("click", async () => {
    const job = current();
    const [name, tags] = [byId("edit-name", HTMLInputElement), byId("edit-tags", HTMLInputElement)];
    const notes = byId("edit-notes", HTMLTextAreaElement);
    name.value = job.name;
    tags.value = Object.entries(job.tags ?? {})
      .map(tagText)
      .join(", ");
    notes.value = job.notes ?? "";
    const send = async () =>
      changed(
        await call(`/v1/jobs/${job.id}`, {
          method: "PATCH",
          body: changesOf(job, name.value, tags.value, notes.value),
        }),
      );
    if (await submitDialog(byId("edit-dialog", HTMLDialogElement), send)) toast("Saved.");
  });
}

/**
 * @param {Job} job
 * @param {string} name
 * @param {string} tags
 * @param {string} notes
 */
function changesOf(job, name, tags, notes) {
  const present = Object.entries(job.tags ?? {});
  const byText = new Map(present.map((one) => [tagText(one).trim(), one]));
  const texts = (tags.match(/(?:[^,]|,,)+/g) ?? []).map((one) => one.trim()).filter(Boolean);
  const entered = new Map(texts.map((text) => byText.get(text) ?? parsedTag(text)));
  const removed = present.filter(([tag]) => !entered.has(tag)).map(([tag]) => [tag, null]);
  return { name: name.trim() || job.name, tags: Object.fromEntries([...entered, ...removed]), notes };
}

/**
 * A tag as the dialog has it. A comma in it is doubled, as commas separate tags.
 *
 * @param {[string, string]} tag
 */
const tagText = ([name, value]) => (value ? `${name}=${value}` : name).replaceAll(",", ",,");

/**
 * @param {string} text
 * @returns {[string, string]}
 */
function parsedTag(text) {
  const [name, ...value] = text.replaceAll(",,", ",").split("=");
  return [name.trim(), value.join("=").trim()];
}
