// User code for the spec in the editor: a folder or a preset's code, uploaded under its digest.

import { call } from "./api.js";
import { bytes } from "./format.js";
import { byId, data, maybeById, setText, toast, toastError } from "./page.js";
import { isIgnored, tar } from "./tar.js";
import { fieldsOf } from "./yaml_fields.js";

const MAX_BYTES = 50 * 2 ** 20; // trainyard.contract.spec.user_code.MAX_CODE_BYTES
const IGNORE_FILE = ".trainyardignore";
const COMMIT_LABELS = ["metadata.git_repository", "metadata.git_commit", "metadata.git_branch", "metadata.git_dirty"]; // trainyard.client.git_source

const REPLACED = new URLSearchParams(location.search).get("replaces"); // the digest of code with which a job failed

let firstText = "";

/**
 * Connect the upload buttons. `text()` is the spec, `setFields(fields)` changes it and removes fields that are null; the
 *  result updates the display.
 *
 * @param {() => string} text
 * @param {SetFields} setFields
 */
export function connectUpload(text, setFields) {
  maybeById("code-preset")?.addEventListener("click", () => {
    const encoder = new TextEncoder();
    /** @type {[string, string][]} */
    const sources = Object.entries(data.code);
    const files = sources.map(([name, source]) => /** @type {[string, Uint8Array]} */ ([name, encoder.encode(source)]));
    upload(files, text, setFields);
  });
  const chooser = maybeById("code-folder", HTMLInputElement);
  chooser?.addEventListener("change", async () => {
    const files = [...(chooser.files ?? [])];
    chooser.value = ""; // so that the same folder can be selected again after a change
    await readFolder(files)
      .then((read) => upload(read, text, setFields))
      .catch(toastError);
  });
  firstText = text();
  if (isReplaced(firstText)) requestAnimationFrame(() => byId("code").scrollIntoView({ block: "center" }));
  return () => show(text());
}

/**
 * Whether a spec still has the code with which a job failed.
 *
 * @param {string} text
 */
const isReplaced = (text) => REPLACED !== null && codeOf(text).digest === REPLACED;

/**
 * Whether a spec that was opened for a correction has none.
 *
 * @param {string} text
 */
export const isUncorrected = (text) => isReplaced(text) && text === firstText;

/**
 * The code that a spec runs: its file, "" if none is named, and its digest, "" if it is not uploaded.
 *
 * @param {string} text
 */
function codeOf(text) {
  const fields = fieldsOf(text);
  const valueOf = (/** @type {string} */ path) => {
    const field = fields.get(path);
    return field ? text.slice(field.from, field.to).replace(/^["']|["']$/g, "") : "";
  };
  const task = valueOf("task");
  const file =
    task === "custom"
      ? valueOf("target") && `${valueOf("target").split(":")[0].replaceAll(".", "/")}.py`
      : valueOf("argv.0");
  return {
    runsCode: ["custom", "script"].includes(task),
    file,
    digest: /^sha256:[0-9a-f]{64}$/.test(valueOf("code")) ? valueOf("code") : "",
  };
}

/**
 * The file that a spec runs and that is not uploaded, or "". Absolute paths are on the workers.
 *
 * @param {string} text
 */
export function missingFile(text) {
  const { runsCode, file, digest } = codeOf(text);
  return runsCode && !digest && !file.startsWith("/") ? file : "";
}

/**
 * Show whether the spec's code is uploaded.
 *
 * @param {string} text
 */
function show(text) {
  const { runsCode, file, digest } = codeOf(text);
  byId("code").hidden = !runsCode;
  const preset = maybeById("code-preset");
  if (preset) preset.hidden = !(file in data.code);
  maybeById("code-folder")?.parentElement?.classList.toggle("primary", isReplaced(text));
  maybeById("submit")?.classList.toggle("primary", !isUncorrected(text)); // one step at a time
  if (isReplaced(text))
    setText(byId("code-status"), "The job failed with this code. Upload the folder with the corrected code.");
  else
    setText(
      byId("code-status"),
      digest
        ? `Code uploaded: ${digest.slice(0, 19)}…`
        : `Upload the folder that contains ${missingFile(text) || "your code"}.`,
    );
}

/**
 * The files of a folder, as pairs of a path and bytes, without those that are not code.
 *
 * @param {File[]} files
 * @returns {Promise<[string, Uint8Array][]>}
 */
async function readFolder(files) {
  const pathOf = (/** @type {File} */ file) => file.webkitRelativePath.split("/").slice(1).join("/");
  const ignoreFile = files.find((file) => pathOf(file) === IGNORE_FILE);
  const patterns = ignoreFile ? (await ignoreFile.text()).split("\n") : [];
  const included = files.filter((file) => !isIgnored(pathOf(file), patterns));
  const size = included.reduce((total, file) => total + file.size, 0);
  if (size > MAX_BYTES)
    throw new Error(
      `The folder has ${bytes(size)}, and the upload limit is ${bytes(MAX_BYTES)}: exclude files that are not code in ${IGNORE_FILE}.`,
    );
  return Promise.all(included.map(async (file) => [pathOf(file), new Uint8Array(await file.arrayBuffer())]));
}

/**
 * @param {[string, Uint8Array][]} files
 * @param {() => string} text
 * @param {SetFields} setFields
 * @param {[string, Uint8Array][]} files
 * @param {() => string} text
 * @param {SetFields} setFields
 */
async function upload(files, text, setFields) {
  if (!files.length) {
    toast("The folder contains no code.", { bad: true });
    return;
  }
  if (!crypto.subtle) {
    toast("Uploads need HTTPS or localhost. Use `trainyard submit --code FOLDER`.", { bad: true });
    return;
  }
  try {
    const archive = tar(files);
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", archive));
    const digest = `sha256:${Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    await call(`/v1/code/${digest}`, {
      method: "PUT",
      body: archive,
      headers: { "Content-Type": "application/x-tar" },
    });
    // A copied spec names the commit of the code that it had.
    const outdated = codeOf(text()).digest === digest ? [] : COMMIT_LABELS;
    setFields({ code: digest, ...Object.fromEntries(outdated.map((path) => [path, null])) });
    toast(`${files.length === 1 ? "One file is" : `${files.length} files are`} uploaded.`);
  } catch (error) {
    toastError(error);
  }
}
