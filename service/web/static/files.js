// The page of data files: an upload in parts, which continues after the loss of the connection and, if the same file is
// chosen again, after the page was closed; and deletions.

import { urlOf } from "./address.js";
import { call } from "./api.js";
import { store, stored } from "./browser_storage.js";
import "./copy_buttons.js";
import { bytes } from "./format.js";
import { around, byId, confirmAction, maybeById, setMessage, setText, toast, toastError } from "./page.js";

const PART_BYTES = 8 * 1024 * 1024;
const ATTEMPTS = 8;
const UNFINISHED = "trainyard-upload:"; // begins the keys of the storage that hold the ids of unfinished uploads
/** @param {number} seconds */
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

for (const cell of document.querySelectorAll("[data-bytes]")) setText(cell, bytes(Number(cell.dataset.bytes)));

const chooser = maybeById("file", HTMLInputElement);
chooser?.addEventListener("change", async () => {
  const [file] = chooser.files ?? [];
  chooser.value = ""; // so that the same file can be chosen again after a correction
  if (!file) return;
  setText(byId("problem"), "");
  byId("choose").hidden = true;
  byId("progress").hidden = false;
  try {
    if (!file.size) throw new Error("The file is empty.");
    await upload(file);
    location.assign(urlOf("/files"));
  } catch (error) {
    setMessage(byId("problem"), `${file.name}: ${error.message}`);
    setText(byId("state"), "");
  } finally {
    byId("choose").hidden = false;
    byId("progress").hidden = true;
  }
});

/**
 * Send a file in parts, and wait until its lines are checked.
 *
 * @param {File} file
 */
async function upload(file) {
  const key = `${UNFINISHED}${file.name}:${file.size}:${file.lastModified}`;
  let state =
    (await unfinished(key, file)) ??
    (await call("/v1/uploads", { method: "POST", body: { name: file.name.slice(-120), size_bytes: file.size } }));
  store(key, state.id);
  for (let failures = 0; state.received_bytes < file.size; ) {
    show(state.received_bytes, file.size);
    try {
      state = await sendPart(state, file);
      failures = 0;
    } catch (error) {
      failures += 1;
      if (failures >= ATTEMPTS || (error.status >= 400 && error.status < 500 && ![409, 429].includes(error.status)))
        throw error;
      setText(byId("state"), "The connection was lost; the upload continues soon.");
      await pause(Math.min(2 ** failures / 2, 10));
      state = await call(`/v1/uploads/${state.id}`).catch(() => state);
    }
  }
  byId("progress").removeAttribute("value");
  setText(byId("state"), "Checking the lines …");
  store(key, null); // also if a line is bad: the service drops the upload then
  return complete(state.id);
}

/**
 * The upload of an unchanged file that an earlier page began; null if there is none any more.
 *
 * @param {string} key
 * @param {File} file
 * @returns {Promise<Api.UploadResource | null>}
 */
async function unfinished(key, file) {
  const id = stored(key);
  const state = id && (await call(`/v1/uploads/${encodeURIComponent(id)}`).catch(() => null));
  return state && !state.file_id && state.size_bytes === file.size ? state : null;
}

/**
 * @param {Api.UploadResource} state
 * @param {File} file
 */
async function sendPart(state, file) {
  const offset = state.received_bytes;
  const body = new Uint8Array(await file.slice(offset, offset + PART_BYTES).arrayBuffer());
  const headers = { "Content-Type": "application/octet-stream" };
  return call(`/v1/uploads/${state.id}?offset=${offset}`, { method: "PUT", body, headers });
}

/**
 * The data file, once the service has checked all lines.
 *
 * @param {string} id
 */
async function complete(id) {
  for (;;) {
    try {
      return await call(`/v1/uploads/${id}/complete`, { method: "POST" });
    } catch (error) {
      if (error.code !== "upload_checking") throw error;
      await pause(1);
    }
  }
}

/**
 * @param {number} received
 * @param {number} size
 */
function show(received, size) {
  byId("progress", HTMLProgressElement).value = received / size;
  setText(byId("state"), `${bytes(received)} of ${bytes(size)}`);
}

maybeById("files")?.addEventListener("click", async (event) => {
  const row = around(event, ".delete")?.closest("tr");
  if (!row) return;

  if (!(await confirmAction(`Delete ${row.dataset.name}?`, "Jobs that have not ended keep its content.", "Delete")))
    return;
  try {
    await call(`/v1/files/${row.dataset.id}`, { method: "DELETE" });
    row.remove();
    toast("File deleted.");
  } catch (error) {
    toastError(error);
  }
});
