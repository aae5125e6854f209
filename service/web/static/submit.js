// The page for writing a spec: problems at their lines and the plan while typing, then one submission.

import { urlOf } from "./address.js";
import { ApiError, call, query } from "./api.js";
import { connectUpload, isUncorrected, missingFile } from "./code_upload.js";
import "./copy_buttons.js";
import { Editor } from "./editor.js";
import { count, dateTime } from "./format.js";
import { byId, confirmAction, data, make, maybeById, parts, setText, toastError } from "./page.js";
import { availability, showPlan } from "./plan.js";
import { fieldsOf, lineOf, removeField, setField } from "./yaml_fields.js";

const PAUSE = 350; // milliseconds after the last key before a plan is requested
const RATE_LIMIT_PAUSE = 2000;
const CLUSTER_INTERVAL = 15_000;
const YAML = { "Content-Type": "application/yaml" };
const MAX_POLLS = 60; // seconds to wait for a start estimate
const DRAFT = "trainyard.draft";

const editor = new Editor(byId("editor"), onChange);
/** @type {Api.PlanResource | null} */
let plan = null;
/** @type {Api.ClusterResource | null} */
let cluster = null;
/** @type {AbortController | null} */
let controller = null;
/** @type {number | undefined} */
let timer;
const preset = byId("preset", HTMLSelectElement);
const force = maybeById("force", HTMLInputElement);
const button = maybeById("submit", HTMLButtonElement);
const estimate = maybeById("estimate-start", HTMLButtonElement);
let isInvalid = false; // by the last answer about the text
let isSubmitting = false;
/** @type {string | null} */
let idempotencyKey = null; // set while a submission may have arrived whose response was lost

// -- the text ----------------------------------------------------------------------------------------------------------

function onChange() {
  idempotencyKey = null;
  setText(byId("start-estimate"), "");
  sessionStorage.setItem(DRAFT, editor.text);
  showOrigin();
  showCode();
  clearTimeout(timer);
  timer = setTimeout(requestPlan, PAUSE);
}

/** @param {Record<string, unknown>} fields */
function setFields(fields) {
  editor.replace(
    Object.entries(fields).reduce(
      (text, [path, value]) => (value === null ? removeField(text, path) : setField(text, path, value)),
      editor.text,
    ),
  );
}

const showCode = connectUpload(() => editor.text, setFields);

/** Show where the text comes from, and where the run would start; both follow from the text alone. */
function showOrigin() {
  const field = fieldsOf(editor.text).get("resume_from");
  const from = field ? editor.text.slice(field.from, field.to) : "";
  const named = preset.value;
  const source = data.source?.id === from ? `${data.source.name} from step ${count(data.source.step)}` : from;
  const resume = fieldsOf(editor.text).get("resume");
  const weights = resume && editor.text.slice(resume.from, resume.to) === "weights";
  const origin = from
    ? `${weights ? "Starts with the weights of" : "Continues"} ${source}.`
    : data.source && !named
      ? `Starts from scratch with the spec of ${data.source.name}.`
      : "";
  const isChanged = named && editor.text !== data.presets[named];
  setText(byId("origin"), origin || (isChanged ? "Differs from the preset." : ""));
  const toggle = byId("toggle-origin");
  toggle.hidden = named ? !isChanged : (data.source?.step ?? null) === null;
  setText(toggle, named ? "Restore the preset" : from ? "Start from scratch" : "Continue from its checkpoint");
}

/**
 * The text with or without the checkpoint of its source. A run whose steps are all done is longer if it continues.
 *
 * @param {string} text
 * @param {boolean} continues
 */
function withOrigin(text, continues) {
  const { id, length } = data.source;
  const changed = continues ? setField(text, "resume_from", id) : removeField(text, "resume_from");
  if (!length) return changed;
  const { field, remark } = length;
  const [old, value] = continues ? [length.before, length.after] : [length.after, length.before];
  const place = fieldsOf(changed).get(field);
  if (!place || Number(changed.slice(place.from, place.to)) !== old) return changed;
  const sized = setField(changed, field, value).replace(remark, "");
  return continues ? remark + sized : sized;
}

byId("toggle-origin").addEventListener("click", () => {
  const { value } = preset;
  editor.replace(value ? data.presets[value] : withOrigin(editor.text, !fieldsOf(editor.text).has("resume_from")));
});

let ownText = data.source ? editor.text : ""; // what the first choice of the list stands for

preset.addEventListener("change", () => editor.replace(data.presets[preset.value] ?? ownText));

const draft = sessionStorage.getItem(DRAFT);
if (draft !== null && !data.given && draft !== editor.text) {
  editor.area.value = ownText = draft;
  editor.drawLines();
  preset.value = Object.entries(data.presets).find(([, text]) => text === draft)?.[0] ?? "";
  preset.options[0].text = "your draft";
  showOrigin();
}

// -- the plan ----------------------------------------------------------------------------------------------------------

async function requestPlan() {
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  setText(byId("plan-state"), "planning …");
  try {
    const made = await call("/v1/plans", { method: "POST", body: editor.text, headers: YAML, signal });
    plan = made;
    isInvalid = false;
    showProblems([]);
    showPlan(made, setFields);
    showAvailability();
    showPlanState({ stale: false });
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 429) {
      timer = setTimeout(requestPlan, RATE_LIMIT_PAUSE);
      return;
    }
    isInvalid = [400, 422].includes(error.status);
    showError(error);
    showPlanState({ stale: true });
  }
}

/** @param {{ stale: boolean }} options */
function showPlanState({ stale }) {
  byId("plan").classList.toggle("stale", stale);
  setText(byId("plan-state"), stale && plan ? "last valid plan" : "");
  showSubmit();
  const label = maybeById("force-label");
  if (!label || !force) return;
  label.hidden = stale || plan?.fits !== false;
  if (label.hidden) force.checked = false;
}

/**
 * Show an invalid spec's problems in the editor, and any other error as a toast.
 *
 * @param {any} error
 */
function showError(error) {
  if (![400, 422].includes(error.status)) {
    toastError(error);
    return;
  }
  showProblems(error.problems.length ? error.problems : [{ param: error.param ?? "", message: error.message }]);
}

/**
 * Show problems at the lines of their fields, and in a list below the text.
 *
 * @param {Problem[]} problems
 */
function showProblems(problems) {
  const fields = fieldsOf(editor.text);
  const located = problems.map(({ param, message }) => {
    const syntaxError = /^not valid YAML: line (\d+)/.exec(message);
    return { param, message, line: syntaxError ? Number(syntaxError[1]) - 1 : lineOf(fields, param) };
  });
  located.sort((one, other) => (one.line ?? -1) - (other.line ?? -1));
  const note = (/** @type {Problem & { line: number | null }} */ { param, message, line }) =>
    line !== null && param && !fields.has(param) ? `${param} ${message}` : message;
  editor.setNotes(located.map((one) => [one.line ?? 0, note(one)]));
  byId("problems").replaceChildren(
    ...located.map(({ param, message, line }) =>
      make(
        "li",
        {},
        make("button", {
          type: "button",
          class: "quiet",
          text: line === null ? "Spec" : `Line ${line + 1}`,
          onclick: () => editor.goTo(line ?? 0),
        }),
        make("span", {}, param ? make("code", { text: param }) : null, " ", ...parts(message)),
      ),
    ),
  );
}

/** A spec that is known to be invalid cannot be submitted. */
function showSubmit() {
  if (!button) return;
  button.disabled = isInvalid || isSubmitting;
  byId("submit-problem").hidden = !isInvalid;
}

// -- the submission ----------------------------------------------------------------------------------------------------

button?.addEventListener("click", async () => {
  const file = missingFile(editor.text);
  if (
    file &&
    !(await confirmAction(
      `Submit without ${file}?`,
      "The code is not uploaded. The job fails unless it is installed on the workers.",
      "Submit without code",
    ))
  )
    return;
  if (
    isUncorrected(editor.text) &&
    !(await confirmAction(
      "Submit without a correction?",
      "The job failed with this code and this spec.",
      "Submit anyway",
    ))
  )
    return;
  idempotencyKey ??= Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
  isSubmitting = true;
  showSubmit();
  const forced = force?.checked ? "true" : undefined;
  try {
    const job = await call(`/v1/jobs${query({ force: forced })}`, {
      method: "POST",
      body: editor.text,
      headers: { ...YAML, "Idempotency-Key": idempotencyKey },
    });
    sessionStorage.removeItem(DRAFT);
    location.assign(urlOf(`/jobs/${encodeURIComponent(job.id)}`));
  } catch (error) {
    if (error instanceof ApiError && error.status < 500) idempotencyKey = null; // it was rejected: the next one is new
    showError(error);
    isSubmitting = false;
    showSubmit();
  }
});

force?.addEventListener("change", () => {
  idempotencyKey = null;
});

/** The text of the spec, for parts that plugins add to the page. */
export const specText = () => editor.text;

/** The planned spec, for them; nothing while the text has problems or no plan. */
export const plannedSpec = () => (byId("plan").classList.contains("stale") ? null : plan?.spec);

// -- the start estimate ------------------------------------------------------------------------------------------------

estimate?.addEventListener("click", async () => {
  const text = editor.text;
  estimate.disabled = true;
  setText(byId("start-estimate"), "requesting …");
  try {
    const answer = await call(`/v1/plans${query({ estimate_start: "true", wait_seconds: 5 })}`, {
      method: "POST",
      body: text,
      headers: YAML,
    });
    const shown = await estimateText(answer.start_estimate);
    if (text === editor.text) setText(byId("start-estimate"), shown);
  } catch (error) {
    setText(byId("start-estimate"), "");
    showError(error);
  }
  estimate.disabled = false;
});

/**
 * Wait for a start estimate, and return it as text.
 *
 * @param {Api.StartEstimateResource} estimate
 */
async function estimateText(estimate) {
  let current = estimate;
  for (let poll = 0; current.state === "waiting" && poll < MAX_POLLS; poll += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    current = await call(`/v1/start-estimates/${encodeURIComponent(current.id ?? "")}`);
  }
  return current.estimated_start
    ? `Estimated start if submitted now: ${dateTime(current.estimated_start)}.`
    : current.message;
}

function showAvailability() {
  if (plan) setText(byId("availability"), cluster ? availability(cluster, plan.spec) : "");
}

async function refreshCluster() {
  cluster = await call("/v1/cluster").catch(() => cluster);
  if (estimate) estimate.hidden = cluster?.backend !== "slurm";
  showAvailability();
}

if (data.source) showOrigin();
showCode();
requestPlan();
refreshCluster();
setInterval(refreshCluster, CLUSTER_INTERVAL);
