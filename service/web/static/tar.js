// Uncompressed tar archives (POSIX ustar) of code: paths and contents, without owners and times.

const BLOCK = 512;
const ALWAYS_IGNORED = [
  ".git",
  ".hg",
  ".svn",
  "__pycache__",
  "*.pyc",
  ".venv",
  "venv",
  "node_modules",
  ".DS_Store",
  ".mypy_cache",
  ".pytest_cache",
  ".ruff_cache",
  ".ipynb_checkpoints",
  "*.egg-info",
  ".tox",
  ".idea",
  ".vscode",
]; // the same as trainyard/client/code_archive.py

/**
 * Whether a file is never code, or matches a pattern of a `.trainyardignore`.
 *
 * @param {string} path
 * @param {string[]} patterns
 */
export function isIgnored(path, patterns = []) {
  const parts = path.split("/");
  if (parts.some((part) => ALWAYS_IGNORED.some((pattern) => matches(part, pattern)))) return true;
  return patterns
    .map((line) => line.trim())
    .filter((line) => line && !line.startsWith("#"))
    .some((line) => {
      const bare = line.replace(/\/+$/, "");
      const subjects = parts.map((part, n) => (bare.includes("/") ? parts.slice(0, n + 1).join("/") : part));
      if (line.endsWith("/")) subjects.pop(); // folders only
      return subjects.some((subject) => matches(subject, bare.replace(/^\/+/, "")));
    });
}

/**
 * @param {string} text
 * @param {string} pattern
 */
const matches = (text, pattern) =>
  new RegExp(
    `^${pattern
      .replace(/[.+^${}()|\\[\]]/g, "\\$&")
      .replaceAll("*", ".*")
      .replaceAll("?", ".")}$`,
    "s",
  ).test(text);

/**
 * Pack files. They are sorted by path, so that the same files give the same bytes.
 *
 * @param {[string, Uint8Array][]} files pairs of a path, relative to the folder, and bytes.
 * @returns {Uint8Array<ArrayBuffer>} Throws an Error if a path is too long for the format.
 */
export function tar(files) {
  const sorted = [...files].sort(([one], [other]) => (one < other ? -1 : 1));
  const archive = new Uint8Array(sorted.reduce((sum, [, bytes]) => sum + BLOCK + padded(bytes.length), 2 * BLOCK));
  let offset = 0;
  for (const [path, bytes] of sorted) {
    archive.set(header(path, bytes.length), offset);
    archive.set(bytes, offset + BLOCK);
    offset += BLOCK + padded(bytes.length);
  }
  return archive;
}

/** @param {number} length */
const padded = (length) => Math.ceil(length / BLOCK) * BLOCK;

/**
 * @param {string} path
 * @param {number} length
 */
function header(path, length) {
  const block = new Uint8Array(BLOCK);
  const write = (/** @type {string} */ text, /** @type {number} */ offset) =>
    block.set(new TextEncoder().encode(text), offset);
  const octal = (/** @type {number} */ value, /** @type {number} */ digits, /** @type {number} */ offset) =>
    write(value.toString(8).padStart(digits, "0"), offset);
  const [prefix, name] = splitPath(path);
  write(name, 0);
  octal(0o644, 7, 100);
  octal(0, 7, 108);
  octal(0, 7, 116);
  octal(length, 11, 124);
  octal(0, 11, 136);
  write("        0", 148); // the checksum counts its own field as blanks; the type 0 is a file
  write("ustar\u000000", 257);
  write(prefix, 345);
  octal(
    block.reduce((sum, byte) => sum + byte, 0),
    6,
    148,
  );
  block[154] = 0;
  return block;
}

/**
 * A path as the header's two fields: a prefix of at most 155 bytes and a name of at most 100.
 *
 * @param {string} path
 */
function splitPath(path) {
  const length = (/** @type {string} */ text) => new TextEncoder().encode(text).length;
  if (length(path) <= 100) return ["", path];
  for (let slash = path.indexOf("/"); slash > 0; slash = path.indexOf("/", slash + 1)) {
    if (length(path.slice(0, slash)) <= 155 && length(path.slice(slash + 1)) <= 100)
      return [path.slice(0, slash), path.slice(slash + 1)];
  }
  throw new Error(`The path ${path} is too long for an upload from the browser: use trainyard submit --code FOLDER.`);
}
