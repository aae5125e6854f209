// Shows one artifact: an image, a text, JSON, a table, histograms. Content is a user's: text is never parsed as HTML, and only
// images of four types are decoded.

import { request } from "./api.js";
import { imageType, kindOf, rowsOf, tablesOf } from "./artifact_files.js";
import { histogramsOf, histogramView } from "./artifact_histograms.js";
import { bytes, count } from "./format.js";
import { make } from "./page.js";

const MAX_TEXT = 256 * 1024; // bytes of a text that are read
const MAX_JSON = 2 * 1024 * 1024; // larger documents are shown as a text
const MAX_IMAGE = 32 * 1024 * 1024;
const MAX_ROWS = 200;
const MAX_COLUMNS = 50;

/**
 * The address of an artifact in the API; `root` is that of its job.
 *
 * @param {string} root
 * @param {string} path
 */
export const artifactUrl = (root, path) => `${root}/artifacts/${path.split("/").map(encodeURIComponent).join("/")}`;

/**
 * The elements that show a file; `url` is its address in the API. A size of null is unknown.
 *
 * @param {string} url
 * @param {{ path: string, size: number | null, type?: string, alt?: string }} file
 * @returns {Promise<Node[]>}
 */
export async function viewOf(url, { path, size: given, type, alt = path }) {
  const kind = kindOf(path);
  if (type === "audio") return soundView(url);
  if (given === 0) return [hint("Empty file.")];
  const size = given ?? 0;
  if (kind === "trace")
    return [
      hint("Trace of the PyTorch profiler: download it, and open the file at ui.perfetto.dev or in chrome://tracing."),
    ];
  if (kind === "image") return size > MAX_IMAGE ? [tooLarge(size)] : imageView(url, alt);
  if (kind === "none") return [hint("No preview of this type; download it.")];
  if (kind === "histograms") return histograms(url, size);
  const whole = kind === "json" && size <= MAX_JSON;
  const response = await request(url, whole ? {} : { headers: { Range: `bytes=0-${MAX_TEXT - 1}` } });
  const text = await response.text();
  const cut = !whole && size > MAX_TEXT ? [hint(`The first ${bytes(MAX_TEXT)} of ${bytes(size)}.`)] : [];
  if (kind === "table") return [...cut, ...tableView(text, path)];
  return [...cut, ...(whole ? jsonView(text) : [textBlock(text)])];
}

/** @param {string} text */
const hint = (text) => make("p", { class: "hint", text });
/** @param {number} size */
const tooLarge = (size) => hint(`Too large for a preview (${bytes(size)}); download it.`);
/** @param {string} text */
const textBlock = (text) => make("pre", { tabindex: 0, text });

/**
 * @param {string} url
 * @param {number} size
 */
async function histograms(url, size) {
  const response = await request(url, size > MAX_JSON ? { headers: { Range: `bytes=-${MAX_JSON}` } } : {});
  const text = await response.text();
  const read = histogramsOf(text);
  const cut = size > MAX_JSON ? [hint(`The last ${bytes(MAX_JSON)} of ${bytes(size)}.`)] : [];
  return [...cut, ...(read.length ? histogramView(read) : [textBlock(text.slice(0, MAX_TEXT))])];
}

/** @param {string} url */
async function soundView(url) {
  const data = await (await request(url)).arrayBuffer();
  return [make("audio", { controls: true, src: URL.createObjectURL(new Blob([data], { type: "audio/wav" })) })];
}

/**
 * @param {string} url
 * @param {string} alt
 */
async function imageView(url, alt) {
  const data = new Uint8Array(await (await request(url)).arrayBuffer());
  const type = imageType(data);
  if (!type) return [hint("This file is not a PNG, JPEG, GIF or WebP image; download it.")];
  const address = URL.createObjectURL(new Blob([data], { type }));
  const image = make("img", { src: address, alt });
  image.addEventListener("load", () => URL.revokeObjectURL(address));
  image.addEventListener("error", () => {
    URL.revokeObjectURL(address);
    image.replaceWith(hint("The image is damaged."));
  });
  return [image];
}

/** @param {string} text */
function jsonView(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    return [textBlock(text.slice(0, MAX_TEXT))]; // NaN is not JSON
  }
  const pretty = JSON.stringify(document, null, 2);
  const tables = tablesOf(document)
    .slice(0, 8)
    .flatMap(({ name, columns, rows }) => [...(name ? [make("h3", { text: name })] : []), ...grid(columns, rows)]);
  return [...tables, textBlock(pretty.length > MAX_TEXT ? `${pretty.slice(0, MAX_TEXT)}\n…` : pretty)];
}

/**
 * @param {string} text
 * @param {string} path
 */
function tableView(text, path) {
  const [columns = [], ...rows] = rowsOf(text, path, MAX_ROWS + 2);
  return grid(columns, rows, rows.length > MAX_ROWS);
}

/**
 * A table of at most `MAX_ROWS` rows and `MAX_COLUMNS` columns, and what it leaves out.
 *
 * @param {string[]} columns
 * @param {any[][]} rows
 */
function grid(columns, rows, more = false) {
  /**
   * @param {any[]} cells
   * @param {"td" | "th"} tag
   */
  const line = (cells, tag) =>
    make("tr", {}, ...cells.slice(0, MAX_COLUMNS).map((cell) => make(tag, { text: cellText(cell) })));
  const shown = rows.slice(0, MAX_ROWS);
  const left = [
    rows.length > MAX_ROWS
      ? more
        ? `the first ${count(MAX_ROWS)} rows`
        : `${count(MAX_ROWS)} of ${count(rows.length)} rows`
      : "",
    columns.length > MAX_COLUMNS ? `${MAX_COLUMNS} of ${count(columns.length)} columns` : "",
  ];
  const table = make(
    "table",
    {},
    make("thead", {}, line(columns, "th")),
    make("tbody", {}, ...shown.map((row) => line(row, "td"))),
  );
  return [
    make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, table),
    ...(left.some(Boolean) ? [hint(`Shown: ${left.filter(Boolean).join(", ")}.`)] : []),
  ];
}

/** @param {any} cell */
const cellText = (cell) =>
  (typeof cell === "string" ? cell : cell === undefined ? "" : JSON.stringify(cell)).slice(0, 500);
