// The columns of the table of jobs: what each shows, how it is sorted, and its head.

import { urlOf } from "./address.js";
import { sparklinePath } from "./curve_preview.js";
import { age, approximate, dateTime, duration, number, stepText, strategyLabel } from "./format.js";
import { etaOf, fractionDone, LOSS, runtimeOf, TRAIN_LOSS } from "./job_rows.js";
import { TERMINAL, tone } from "./job_status.js";
import { data, make, makeSvg, pageOf, setText, within } from "./page.js";

const MAX_TAGS = 3; // beside a name

/**
 * A column whose cells are a text that changes with the job.
 *
 * @param {string} label
 * @param {string | null} sort
 * @param {number} width
 * @param {(job: Row) => string} show
 * @param {Partial<Column> & Pick<Column, "valueOf">} more
 * @returns {BuiltIn}
 */
const text = (label, sort, width, show, more) => ({
  label,
  sort,
  width,
  cell: () => make("td"),
  fill: (cell, job) => {
    setText(cell, show(job));
    cell.title = cell.textContent;
  },
  ...more,
});

/** @type {Record<string, BuiltIn>} */
const BUILT_IN = {
  status: {
    label: "Status",
    sort: "status",
    width: 122,
    className: "state",
    valueOf: (job) => job.status,
    cell: () => make("td", {}, make("span", { class: "chip" })),
    fill(cell, job) {
      const chip = within(cell, ".chip");
      chip.className = `chip ${tone(job.status)}`;
      chip.title = job.status_message;
      setText(chip, job.status);
    },
  },
  name: {
    label: "Name",
    sort: "name",
    width: 250,
    valueOf: (job) => job.name,
    cell: () =>
      make(
        "td",
        {},
        make("a"),
        " ",
        make("span", { class: "tags" }),
        make("span", { class: "message" }, make("a"), " ", make("small")),
      ),
    fill(cell, job, { note, sweep, shown }) {
      const [link, tags, message] = [
        within(cell, "a", HTMLAnchorElement),
        within(cell, ".tags"),
        within(cell, ".message"),
      ];
      link.href = urlOf(`/jobs/${encodeURIComponent(job.id)}`);
      setText(link, job.name);
      const group = within(message, "a", HTMLAnchorElement);
      fillSweep(group, job, sweep);
      setText(within(message, "small"), note);
      message.hidden = group.hidden && !note;
      const names = [...(job.archived ? ["archived"] : []), ...Object.entries(job.tags).map(tagText)];
      fillTags(tags, shown.has("tags") ? [] : names.slice(0, MAX_TAGS));
      cell.title = [
        note ? `${job.name} ${note}` : job.name,
        ...(names.length ? [`Tags: ${names.join(", ")}`] : []),
      ].join("\n");
    },
  },
  progress: {
    label: "Progress",
    width: 216, // two lines of a failure's cause
    valueOf: (job) => job.progress?.step ?? null,
    cell: () =>
      make(
        "td",
        {},
        make("span", { class: "message" }),
        make("span", { class: "bar" }, make("span")),
        make("span", { class: "steps" }),
        " ",
        make("span", { class: "eta" }),
      ),
    fill(cell, job) {
      const [message, bar, steps, eta] = /** @type {HTMLElement[]} */ ([...cell.children]);
      const { progress } = job;
      const problem = problemOf(job);
      setText(message, problem ?? (progress ? "" : job.status_message));
      const reached = progress ? stepText(progress) : "";
      message.title = [message.textContent, ...(problem !== null && reached ? [`Step ${reached}`] : [])].join("\n");
      message.hidden = !message.textContent;
      cell.classList.toggle("failed", problem !== null);
      bar.hidden = problem !== null || TERMINAL.has(job.status) || !progress?.total_steps;
      within(bar, "span").style.width = `${(fractionDone(job) * 100).toFixed(1)}%`;
      setText(steps, problem === null ? reached : ""); // its room is for the cause
      const left = etaOf(progress);
      setText(eta, left === null ? "" : `${approximate(left)} left`);
    },
  },
  loss: {
    label: TRAIN_LOSS,
    sort: LOSS,
    width: 168,
    note: "Sorted by train/loss. A script’s own loss has a column of its name, such as metric.loss.",
    valueOf: (job) => job.metrics[LOSS] ?? null,
    cell() {
      const sparkline = makeSvg(
        "svg",
        { class: "sparkline", viewBox: "0 0 80 20", "aria-hidden": "true" },
        makeSvg("path"),
      );
      return make("td", {}, sparkline, make("span", { class: "value" }));
    },
    fill(cell, job, { curve }) {
      const loss = job.metrics?.[LOSS] ?? null;
      setText(within(cell, ".value"), loss === null ? "" : number(loss));
      cell.title = loss === null ? "" : String(loss);
      within(cell, "path", SVGElement).setAttribute("d", curve ? sparklinePath(curve) : "");
    },
  },
  gpus: text(
    data?.accelerator === "cpu" ? "Processes" : "GPUs",
    "gpus",
    data?.accelerator === "cpu" ? 96 : 78,
    (job) => String(job.spec.gpus ?? 1),
    { valueOf: (job) => job.spec.gpus ?? 1, right: true },
  ),
  strategy: text("Strategy", "strategy", 126, (job) => strategyLabel(job.spec), {
    valueOf: (job) => strategyLabel(job.spec),
  }),
  project: text("Project", "project", 120, (job) => job.project ?? "", { valueOf: (job) => job.project }),
  owner: text("Owner", "user", 92, (job) => job.created_by, { valueOf: (job) => job.created_by }),
  age: {
    label: "Age",
    sort: "-created",
    width: 92,
    right: true,
    valueOf: () => null,
    cell: () => make("td", {}, make("time", { "data-format": "age" })),
    fill(cell, job) {
      const time = within(cell, "time");
      if (time.getAttribute("datetime") === job.created_at) return;
      time.setAttribute("datetime", job.created_at);
      time.title = dateTime(job.created_at, "long");
      setText(time, age(job.created_at));
    },
  },
  tags: {
    label: "Tags",
    width: 160,
    valueOf: (job) => Object.keys(job.tags).sort().join(", ") || null,
    cell: () => make("td", {}, make("span", { class: "tags" })),
    fill(cell, job) {
      const names = Object.entries(job.tags).map(tagText);
      fillTags(within(cell, ".tags"), names);
      cell.title = names.join(", ");
    },
  },
  notes: text("Notes", null, 200, (job) => (job.notes ?? "").split("\n")[0], { valueOf: (job) => job.notes }),
  runtime: text(
    "Runtime",
    "runtime",
    100,
    (job) => {
      const seconds = runtimeOf(job);
      return seconds === null ? "" : duration(seconds);
    },
    { valueOf: (job) => runtimeOf(job), right: true, format: (seconds) => duration(seconds) },
  ),
};
export const BUILT_IN_NAMES = Object.keys(BUILT_IN);
const isBuiltIn = (/** @type {string} */ name) => Object.hasOwn(BUILT_IN, name); // a metric may be named `constructor`

/**
 * Why a job failed or its state is unknown, the cause first; null for other jobs.
 *
 * @param {Row} job
 */
function problemOf({ status, status_message: message, cause }) {
  if (status === "failed") return cause ?? message;
  return status === "lost" ? message : null;
}

/**
 * Fill the link to the sweep of a job; `name` is that of the sweep, as far as it is known.
 *
 * @param {HTMLAnchorElement} link
 * @param {Row} job
 * @param {string | undefined} name
 */
function fillSweep(link, job, name) {
  link.href = pageOf("sweep", job.sweep_id) ?? "";
  link.hidden = !link.getAttribute("href");
  if (link.hidden) return;
  link.title = `Sweep ${name ?? job.sweep_id}`;
  setText(link, name && name !== job.name ? `sweep ${name}` : "sweep");
}

/** @param {[string, string]} tag */
const tagText = ([name, value]) => (value ? `${name}=${value}` : name);

/**
 * @param {HTMLElement} element
 * @param {string[]} names
 */
function fillTags(element, names) {
  if (element.dataset.names === names.join("\n")) return;
  element.dataset.names = names.join("\n");
  element.replaceChildren(...names.map((name) => make("span", { class: "tag", text: name })));
}

/**
 * The column of a name: a built-in one, or the value of a key.
 *
 * @param {string} name
 * @returns {Column}
 */
export function columnOf(name) {
  if (isBuiltIn(name)) return { name, className: name, ...BUILT_IN[name] };
  return {
    name,
    label: name,
    sort: name,
    width: Math.max(110, Math.min(320, Math.ceil(name.length * 7.4) + 42)),
    className: "value",
    isValue: true,
    valueOf: (job) => job.values?.[name] ?? null,
    cell: () => make("td", { "data-label": name }),
    fill(cell, job) {
      const value = job.values?.[name] ?? null;
      setText(cell, valueText(value));
      cell.classList.toggle("right", typeof value === "number");
      cell.title = value === null ? "" : String(value);
    },
  };
}

/**
 * A value of a column as text.
 *
 * @param {any} value
 */
export function valueText(value) {
  if (value === null) return "";
  if (typeof value === "number")
    return Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : number(value);
  return String(value);
}

/**
 * The keys whose values the API must return for these columns.
 *
 * @param {string[]} names
 */
export const keysOfColumns = (names) => names.filter((name) => !isBuiltIn(name));
