// An uncompressed tar of files, as the service keeps code: names, contents, nothing of the machine it comes from.

const BLOCK = 512;
const NEVER = [
  ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".DS_Store", ".mypy_cache", ".pytest_cache", ".ruff_cache",
  ".ipynb_checkpoints", "*.egg-info", ".tox", ".idea", ".vscode",
]; // the same as trainyard/client/code_archive.py

/** Whether a file is never code, or is named by the lines of a `.trainyardignore`. */
export function ignored(path, lines = []) {
  const parts = path.split("/");
  if (parts.some((part) => NEVER.some((pattern) => matches(part, pattern)))) return true;
  return lines.map((line) => line.trim()).filter((line) => line && !line.startsWith("#")).some((line) => {
    const bare = line.replace(/\/+$/, "");
    const subjects = parts.map((part, n) => (bare.includes("/") ? parts.slice(0, n + 1).join("/") : part));
    if (line.endsWith("/")) subjects.pop(); // folders only
    return subjects.some((subject) => matches(subject, bare.replace(/^\/+/, "")));
  });
}

const matches = (text, pattern) =>
  new RegExp(`^${pattern.replace(/[.+^${}()|\\[\]]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`, "s").test(text);

/**
 * Pack files, sorted by name so that the same files make the same bytes.
 *
 * @param files pairs of a path from the folder's root and its bytes.
 * @returns {Uint8Array} Raises an Error about a name that is too long for the format.
 */
export function tar(files) {
  const sorted = [...files].sort(([one], [other]) => (one < other ? -1 : 1));
  const size = sorted.reduce((sum, [, bytes]) => sum + BLOCK + up(bytes.length), 2 * BLOCK);
  const whole = new Uint8Array(size);
  let at = 0;
  for (const [path, bytes] of sorted) {
    whole.set(head(path, bytes.length), at);
    whole.set(bytes, at + BLOCK);
    at += BLOCK + up(bytes.length);
  }
  return whole;
}

const up = (length) => Math.ceil(length / BLOCK) * BLOCK;

function head(path, length) {
  const block = new Uint8Array(BLOCK);
  const write = (text, at) => block.set(new TextEncoder().encode(text), at);
  const octal = (value, digits, at) => write(value.toString(8).padStart(digits, "0"), at);
  const [prefix, name] = split(path);
  write(name, 0);
  octal(0o644, 7, 100);
  octal(0, 7, 108);
  octal(0, 7, 116);
  octal(length, 11, 124);
  octal(0, 11, 136);
  write("        0", 148); // the sum is taken with blanks in its own place; then the type: a file
  write("ustar\u000000", 257);
  write(prefix, 345);
  octal(block.reduce((sum, byte) => sum + byte, 0), 6, 148);
  block[154] = 0;
  return block;
}

/** A path in the two places of a header: 155 bytes of folders, 100 of what is in them. */
function split(path) {
  const length = (text) => new TextEncoder().encode(text).length;
  if (length(path) <= 100) return ["", path];
  for (let at = path.indexOf("/"); at > 0; at = path.indexOf("/", at + 1)) {
    if (length(path.slice(0, at)) <= 155 && length(path.slice(at + 1)) <= 100) return [path.slice(0, at), path.slice(at + 1)];
  }
  throw new Error(`${path} has too long a name for an upload from the browser: use trainyard submit --code FOLDER.`);
}
