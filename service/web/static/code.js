// Code of one's own for the spec in the editor: a folder, or what a preset brings, uploaded under its digest.

import { call } from "./api.js";
import { fieldsOf } from "./fields.js";
import { byId, data, say, setText } from "./page.js";
import { ignored, tar } from "./tar.js";

const MOST = 50 * 1024 * 1024; // trainyard.contract.spec.user_code.MAX_CODE_BYTES
const IGNORE = ".trainyardignore";

/** Keep the row about code up; `text()` is the spec, `use(fields)` changes it. Returns what does so now. */
export function watchCode(text, use) {
  byId("code-preset")?.addEventListener("click", () => {
    const encoder = new TextEncoder();
    upload(Object.entries(data.code).map(([name, source]) => [name, encoder.encode(source)]), use);
  });
  byId("code-folder")?.addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // so that the same folder, changed, can be taken again
    await chosen(files).then((found) => upload(found, use)).catch((error) => say(error.message, { bad: true }));
  });
  return () => show(text());
}

/** What a spec runs of its user's code: its file, "" where none is named, and the digest, "" where none is uploaded. */
function codeOf(text) {
  const fields = fieldsOf(text);
  const told = (path) => { const place = fields.get(path); return place ? text.slice(place.from, place.to).replace(/^["']|["']$/g, "") : ""; };
  const task = told("task");
  const file = task === "custom" ? told("target") && `${told("target").split(":")[0].replaceAll(".", "/")}.py` : told("argv.0");
  return { own: ["custom", "script"].includes(task), file, digest: /^sha256:[0-9a-f]{64}$/.test(told("code")) ? told("code") : "" };
}

/** The file that a spec wants and that nobody uploaded; "" where there is none. A path from the root is on the machines. */
export function missing(text) {
  const { own, file, digest } = codeOf(text);
  return own && !digest && !file.startsWith("/") ? file : "";
}

/** What the spec says of its code, and what can be done about it. */
function show(text) {
  const { own, file, digest } = codeOf(text);
  byId("code").hidden = !own;
  if (byId("code-preset")) byId("code-preset").hidden = !(file in data.code);
  const wanted = missing(text);
  setText(byId("code-told"), digest ? `Code uploaded: ${digest.slice(0, 19)}…` : `Upload the folder that contains ${wanted || "your code"}.`);
}

/** The files of a folder, from its root, without files that are not code. */
async function chosen(files) {
  const inside = (file) => file.webkitRelativePath.split("/").slice(1).join("/");
  const rules = files.find((file) => inside(file) === IGNORE);
  const lines = rules ? (await rules.text()).split("\n") : [];
  const wanted = files.filter((file) => !ignored(inside(file), lines));
  const sum = wanted.reduce((total, file) => total + file.size, 0);
  if (sum > MOST) throw new Error(`The folder holds ${Math.round(sum / 1e6)} MB, and the upload limit is ${Math.round(MOST / 1e6)} MB: leave out with ${IGNORE} files that are not code.`);
  return Promise.all(wanted.map(async (file) => [inside(file), new Uint8Array(await file.arrayBuffer())]));
}

async function upload(files, use) {
  if (!files.length) { say("The folder contains no code.", { bad: true }); return; }
  if (!crypto.subtle) { say("Uploads need HTTPS or localhost. Use `trainyard submit --code FOLDER`.", { bad: true }); return; }
  try {
    const archive = tar(files);
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", archive));
    const digest = `sha256:${Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    await call(`/v1/code/${digest}`, { method: "PUT", body: archive, headers: { "Content-Type": "application/x-tar" } });
    use({ code: digest });
    say(`${files.length === 1 ? "One file is" : `${files.length} files are`} uploaded.`);
  } catch (error) {
    say(error.message, { bad: true });
  }
}
