// The page for writing a spec: problems at their lines, then one submission. A plugin may read the text while typing.

import { urlOf } from "./address.js";
import { ApiError, call, newKey, query } from "./api.js";
import { connectUpload, isUncorrected, missingFile } from "./code_upload.js";
import "./copy_buttons.js";
import { Editor } from "./editor.js";
import { count } from "./format.js";
import { byId, confirmAction, data, make, maybeById, parts, setText, toastError } from "./page.js";
import { fieldsOf, lineOf, removeField, setField } from "./yaml_fields.js";

const YAML = { "Content-Type": "application/yaml" };
const DRAFT = "trainyard.draft";

const editor = new Editor(byId("editor"), onChange);
/** @type {SpecReader | null} */
let reader = null;
const preset = byId("preset", HTMLSelectElement);
const button = maybeById("submit", HTMLButtonElement);
let isInvalid = false; // by the last answer to the reader of the text
let isSubmitting = false;
/** @type {string | null} */
let idempotencyKey = null; // set while a submission may have arrived whose response was lost
let wasForced = false; // that submission

// -- the text ----------------------------------------------------------------------------------------------------------

function onChange() {
  idempotencyKey = null;
  sessionStorage.setItem(DRAFT, editor.text);
  showOrigin();
  showCode();
  if (reader) reader.changed();
  else showProblems([]);
}

/** @type {SetFields} */
export function setFields(fields) {
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

// -- the problems ------------------------------------------------------------------------------------------------------

/**
 * Show an invalid spec's problems in the editor, and any other error as a toast.
 *
 * @param {any} error
 */
export function showError(error) {
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
export function showProblems(problems) {
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
  const isForced = reader?.isForced() ?? false;
  if (isForced !== wasForced) idempotencyKey = null;
  wasForced = isForced;
  idempotencyKey ??= newKey();
  isSubmitting = true;
  showSubmit();
  try {
    const job = await call(`/v1/jobs${query({ force: isForced ? "true" : undefined })}`, {
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

// -- parts that plugins add to the page --------------------------------------------------------------------------------

/** The text of the spec. */
export const specText = () => editor.text;

/** @param {SpecReader} made reads the text from now on. */
export function connectReader(made) {
  reader = made;
}

/** The resolved spec; undefined if nothing reads the text, and null while the text has problems or is being read. */
export const resolvedSpec = () => reader?.spec();

/** @param {boolean} value whether the text is invalid by the answer to its reader. */
export function setInvalid(value) {
  isInvalid = value;
  showSubmit();
}

if (data.source) showOrigin();
showCode();
