// What the artifacts of a job are: folders and files, and how each is shown. Pure functions.

const IMAGES = new Set(["png", "jpg", "jpeg", "gif", "webp"]);
const TEXTS = new Set([
  "txt",
  "log",
  "md",
  "yaml",
  "yml",
  "toml",
  "ini",
  "cfg",
  "py",
  "sh",
  "jsonl",
  "ndjson",
  "out",
  "err",
  "diff",
  "patch",
]);
const SEPARATORS = new Map([
  ["csv", ","],
  ["tsv", "\t"],
]);
const HISTOGRAMS = /(?:^|\/)histograms\/.+\.jsonl$/; // one line for each step, as the followers of trackers write them
const TRACE = /(?:^profile\/|trace).*\.json(?:\.gz)?$/i;

/** @param {string} path */
const nameOf = (path) => path.slice(path.lastIndexOf("/") + 1);

/** @param {string} path */
const extensionOf = (path) => (/\.(\w+)$/.exec(nameOf(path))?.[1] ?? "").toLowerCase();

/**
 * How a file is shown: "image", "trace", "table", "json", "histograms", "text", or "none". HTML and SVG are only downloaded.
 *
 * @param {string} path
 */
export function kindOf(path) {
  const extension = extensionOf(path);
  if (IMAGES.has(extension)) return "image";
  if (TRACE.test(path)) return "trace";
  if (SEPARATORS.has(extension)) return "table";
  if (extension === "json") return "json";
  if (HISTOGRAMS.test(path)) return "histograms";
  return TEXTS.has(extension) ? "text" : "none";
}

/**
 * The type of an image by its first bytes, which its name need not be true to; null if it is none of the four.
 *
 * @param {Uint8Array} head
 */
export function imageType(head) {
  const starts = (/** @type {number[]} */ ...values) => values.every((value, n) => head[n] === value);
  if (starts(0x89, 0x50, 0x4e, 0x47)) return "image/png";
  if (starts(0xff, 0xd8, 0xff)) return "image/jpeg";
  if (starts(0x47, 0x49, 0x46, 0x38)) return "image/gif";
  return starts(0x52, 0x49, 0x46, 0x46) && [0x57, 0x45, 0x42, 0x50].every((value, n) => head[8 + n] === value)
    ? "image/webp"
    : null;
}

/**
 * The rows of comma- or tab-separated text; a value in quotes may contain separators and line breaks.
 *
 * @param {string} text
 * @param {string} path
 * @param {number} most
 * @returns {string[][]}
 */
export function rowsOf(text, path, most) {
  const separator = SEPARATORS.get(extensionOf(path)) ?? ",";
  const rows = [/** @type {string[]} */ ([])];
  let value = "";
  let quoted = false;
  for (let n = 0; n < text.length; n += 1) {
    const letter = text[n];
    if (quoted) {
      if (letter !== '"') value += letter;
      else if (text[n + 1] === '"') {
        value += '"';
        n += 1;
      } else quoted = false;
    } else if (letter === '"' && value === "") quoted = true;
    else if (letter === separator) {
      rows.at(-1).push(value);
      value = "";
    } else if (letter === "\n") {
      rows.at(-1).push(value.replace(/\r$/, ""));
      value = "";
      if (rows.length === most) return rows;
      rows.push([]);
    } else value += letter;
  }
  if (value || rows.at(-1).length) rows.at(-1).push(value);
  else rows.pop();
  return rows;
}

/** @param {any} value */
const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * The tables in a JSON document: W&B's `{columns, data}`, a list of objects, and such lists in an object's fields.
 *
 * @param {any} document
 * @returns {{ name: string, columns: string[], rows: any[][] }[]}
 */
export function tablesOf(document) {
  if (isRecord(document) && Array.isArray(document.columns) && Array.isArray(document.data)) {
    return [{ name: "", columns: document.columns.map(String), rows: document.data.filter(Array.isArray) }];
  }
  /** @type {[string, any][]} */
  const lists = Array.isArray(document) ? [["", document]] : isRecord(document) ? Object.entries(document) : [];
  return lists
    .filter(([, list]) => Array.isArray(list) && list.length && list.every(isRecord))
    .map(([name, list]) => {
      const columns = /** @type {string[]} */ ([...new Set(list.slice(0, 200).flatMap(Object.keys))]);
      return { name, columns, rows: list.map((/** @type {any} */ row) => columns.map((column) => row[column])) };
    });
}

/**
 * The tree of listed files. A folder is `{ name, size, count, folders, entries }`; an entry is `{ name, path, size }`.
 *
 * @param {Api.ArtifactResource[]} files
 */
export function treeOf(files) {
  const root = folder("");
  for (const { path, size_bytes: size } of files) {
    const parts = path.split("/");
    let at = root;
    for (const part of [null, ...parts.slice(0, -1)]) {
      if (part !== null) {
        const inner = at.folders.get(part) ?? folder(part);
        at.folders.set(part, inner);
        at = inner;
      }
      at.size += size;
      at.count += 1;
    }
    at.entries.push({ name: parts.at(-1), path, size });
  }
  return root;
}

/**
 * @param {string} name
 * @returns {Folder}
 */
const folder = (name) => ({ name, size: 0, count: 0, folders: new Map(), entries: [] });
