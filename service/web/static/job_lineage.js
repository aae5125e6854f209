// Where a job comes from, and what was made of it: a tree on its page, which is read when its tab is shown.

import { urlOf } from "./address.js";
import { call } from "./api.js";
import { count } from "./format.js";
import { tone } from "./job_status.js";
import { byId, make, pageOf, toastError } from "./page.js";

/**
 * Read and show the lineage of a job.
 *
 * @param {Job} job
 */
export const showLineage = (job) =>
  call(`/v1/jobs/${job.id}/lineage`).then(
    (lineage) => byId("lineage-list").replaceChildren(treeOf(job, lineage)),
    toastError,
  );

/**
 * The tree: the oldest ancestor is its root, and the job is below the youngest one.
 *
 * @param {Job} job
 * @param {Api.JobLineage} lineage
 */
function treeOf(job, lineage) {
  const made = lineage.versions.map((version) => item("model", versionLink(version)));
  const forks = lineage.forks.map((fork) => item("fork", ...related(fork)));
  const bases = lineage.base_versions.map((version) => item("base", versionLink(version)));
  if (lineage.base) bases.push(item("base", make("span", { class: "mono", text: lineage.base })));
  const data = lineage.data.map((one) =>
    item("data", make("span", { class: "mono", text: one.field }), " ", dataName(one)),
  );
  const sweep = lineage.sweep_id ? [item("sweep", resourceLink("sweep", lineage.sweep_id, lineage.sweep_id))] : [];
  const prerequisites = lineage.prerequisites.map((one) => item("after", ...dependency(one)));
  const dependents = lineage.dependents.map((one) => item("before", ...dependency(one)));
  if (lineage.has_more_forks) forks.push(hint(`Only the first ${count(forks.length)} forks are shown.`));
  if (lineage.has_more_dependents)
    dependents.push(hint(`Only the first ${count(dependents.length)} jobs that wait for it are shown.`));
  const own = [...prerequisites, ...bases, ...data, ...sweep, ...made, ...forks, ...dependents];
  const none = own.length ? [] : [hint("It names no data, and nothing was made of it yet.")];
  let tree = make("li", {}, make("strong", { text: job.name }), " this job", make("ul", {}, ...own, ...none));
  for (const ancestor of lineage.ancestors) tree = make("li", {}, ...related(ancestor), make("ul", {}, tree));
  return tree;
}

/** @param {string} text */
const hint = (text) => make("li", { class: "hint", text });

/**
 * @param {string} kind
 * @param {...Child} content
 */
const item = (kind, ...content) => make("li", {}, make("span", { class: "kind", text: kind }), " ", ...content);

/** @param {{ model: string, version: number, step: number | null }} options */
function versionLink({ model, version, step }) {
  const text = `${model}@${version}${step === null ? "" : `, step ${count(step)}`}`;
  return resourceLink("model", model, text);
}

/**
 * A text, which is a link where the resource has a page.
 *
 * @param {string} kind
 * @param {string} id
 * @param {string} text
 */
function resourceLink(kind, id, text) {
  const href = pageOf(kind, id);
  return make(href ? "a" : "span", { href, text });
}

/** @param {Api.UsedData} used */
function dataName({ text, file_id: fileId, file_name: name, digest }) {
  const shown = make("span", {
    class: "mono",
    text: name ?? text,
    title: [fileId, digest].filter(Boolean).join("\n") || undefined,
  });
  return fileId && name ? make("a", { href: urlOf("/files") }, shown) : shown;
}

/**
 * What the later of two jobs took: the checkpoint of a step, or only the spec.
 *
 * @param {number | null} step
 */
const taken = (step) => (step === null ? "without its checkpoint" : `checkpoint of step ${count(step)}`);

/**
 * A job that waits for the other one, or for which it waits: its name, when the later one starts, and its status.
 *
 * @param {Api.RelatedDependency} related
 */
function dependency({ job_id: id, name, status, any_end: anyEnd }) {
  const end = anyEnd ? "any end" : "success";
  if (name === null) return [make("span", { class: "mono", text: id }), ` deleted or not visible; ${end}`];
  return [jobLink(id, name), ` ${end} `, make("span", { class: `chip ${tone(status)}`, text: status })];
}

/**
 * @param {string} id
 * @param {string} name
 */
const jobLink = (id, name) => make("a", { href: urlOf(`/jobs/${encodeURIComponent(id)}`), text: name });

/**
 * A job by its name, the step of the checkpoint between the two, and its status.
 *
 * @param {Api.RelatedJob} related
 */
function related({ job_id: id, name, status, step, continues }) {
  if (name === null) return [make("span", { class: "mono", text: id }), ` deleted or not visible; ${taken(step)}`];
  return [
    jobLink(id, name),
    ` ${taken(step)}${continues || step === null ? "" : ", only the weights"} `,
    make("span", { class: `chip ${tone(status)}`, text: status }),
  ];
}
