// Uploaded code: the files of an archive, and how those of two runs differ. Contents are shown as text alone.

import { request } from "./api.js";

const BLOCK = 512;
const MAX_BYTES = 32 * 1024 * 1024; // of an archive that is read in a page
const MAX_FILES = 20_000;
const MAX_LINES = 3000; // of a file whose lines are compared
const MAX_EDITS = 600; // beyond which the rest of two files is shown as replaced
const CONTEXT = 3;
export const DIFF_FILE = ".trainyard/uncommitted.diff"; // as in trainyard/client/git_source.py

/**
 * The files of the archive with a digest, by path. Throws an Error if it is too large or cannot be read.
 *
 * @param {string} digest
 */
export async function readArchive(digest) {
  const url = `/v1/code/${encodeURIComponent(digest)}`;
  const size = Number(
    (await request(url, { headers: { Range: "bytes=0-0" } })).headers.get("Content-Range")?.split("/")[1],
  );
  if (!(size <= MAX_BYTES)) throw new Error("The code is too large to be shown here; download it.");
  return filesOf(new Uint8Array(await (await request(url)).arrayBuffer()));
}

/**
 * The regular files of an uncompressed tar, by path.
 *
 * @param {Uint8Array} archive
 * @returns {Map<string, Uint8Array>}
 */
export function filesOf(archive) {
  /** @type {Map<string, Uint8Array>} */
  const files = new Map();
  const text = (/** @type {Uint8Array} */ bytes) => new TextDecoder().decode(bytes);
  /**
   * @param {number} at
   * @param {number} start
   * @param {number} length
   */
  const field = (at, start, length) => text(archive.subarray(at + start, at + start + length)).split("\0")[0];
  /** @type {string | null} */
  let longName = null;
  for (let at = 0; at + BLOCK <= archive.length && files.size < MAX_FILES; ) {
    const name = field(at, 0, 100);
    if (!name) break; // the end is two empty blocks
    const size = parseInt(field(at, 124, 12), 8);
    if (!(size >= 0)) break;
    const content = archive.subarray(at + BLOCK, at + BLOCK + size);
    const type = field(at, 156, 1);
    const prefix = field(at, 257, 5) === "ustar" ? field(at, 345, 155) : "";
    if (type === "L")
      longName = text(content).split("\0")[0]; // GNU
    else if (type === "x")
      longName = /^\d+ path=(.*)$/m.exec(text(content))?.[1] ?? null; // POSIX
    else {
      if (type === "0" || type === "")
        files.set((longName ?? (prefix ? `${prefix}/${name}` : name)).replace(/^\.\//, ""), content);
      longName = null;
    }
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK;
  }
  return files;
}

/** @param {Uint8Array} bytes */
const isText = (bytes) => !bytes.subarray(0, 8000).includes(0);
/**
 * @param {Uint8Array} one
 * @param {Uint8Array} other
 */
const isSame = (one, other) => one.length === other.length && one.every((byte, n) => byte === other[n]);

/**
 * How the files of two archives differ, as lines of a unified diff, at most `most` of them. The files already have the changes that `DIFF_FILE` lists.
 *
 * @param {Map<string, Uint8Array>} before
 * @param {Map<string, Uint8Array>} after
 * @param {number} most
 * @returns {string[]}
 */
export function differenceOf(before, after, most) {
  /** @type {string[]} */
  const lines = [];
  for (const path of [...new Set([...before.keys(), ...after.keys()])].filter((one) => one !== DIFF_FILE).sort()) {
    const [one, other] = [before.get(path), after.get(path)];
    if (one && other && isSame(one, other)) continue;
    lines.push(`--- ${one ? path : "(absent)"}`, `+++ ${other ? path : "(absent)"}`);
    if ([one, other].some((bytes) => bytes && !isText(bytes))) lines.push("@@ binary content differs");
    else lines.push(...hunks(linesOf(one), linesOf(other)));
    if (lines.length > most) return [...lines.slice(0, most), "@@ more differences are left out"];
  }
  return lines;
}

/** @param {Uint8Array | undefined} bytes */
const linesOf = (bytes) => {
  if (!bytes) return [];
  const lines = new TextDecoder().decode(bytes).split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
};

/**
 * The hunks of two lists of lines.
 *
 * @param {string[]} before
 * @param {string[]} after
 * @returns {string[]}
 */
export function hunks(before, after) {
  if (before.length > MAX_LINES || after.length > MAX_LINES)
    return [`@@ ${before.length} lines became ${after.length}`];
  const marked = edits(before, after);
  const shown = new Set();
  marked.forEach(([mark], n) => {
    if (mark !== " ") for (let near = n - CONTEXT; near <= n + CONTEXT; near += 1) shown.add(near);
  });
  /** @type {string[]} */
  const result = [];
  let line = 1;
  marked.forEach(([mark, text], n) => {
    if (shown.has(n)) {
      if (n === 0 || !shown.has(n - 1)) result.push(`@@ line ${line}`);
      result.push(mark + text);
    }
    if (mark !== "-") line += 1;
  });
  return result;
}

/**
 * Each line with its mark: " ", "-" or "+". The shortest edit script (Myers 1986), bounded by `MAX_EDITS`.
 *
 * @param {string[]} before
 * @param {string[]} after
 * @returns {[string, string][]}
 */
function edits(before, after) {
  const same = (/** @type {number} */ x, /** @type {number} */ y) => before[x] === after[y];
  let reached = new Map([[1, 0]]);
  const steps = [];
  for (let cost = 0; cost <= Math.min(MAX_EDITS, before.length + after.length); cost += 1) {
    steps.push(reached);
    reached = new Map(reached);
    for (let diagonal = -cost; diagonal <= cost; diagonal += 2) {
      const down =
        diagonal === -cost ||
        (diagonal !== cost && (reached.get(diagonal - 1) ?? -1) < (reached.get(diagonal + 1) ?? -1));
      let x = down ? (reached.get(diagonal + 1) ?? 0) : (reached.get(diagonal - 1) ?? 0) + 1;
      while (x < before.length && x - diagonal < after.length && same(x, x - diagonal)) x += 1;
      reached.set(diagonal, x);
      if (x >= before.length && x - diagonal >= after.length) return trace(steps, before, after);
    }
  }
  return [...before.map(marked("-")), ...after.map(marked("+"))];
}

/**
 * @param {string} mark
 * @returns {(text: string) => [string, string]}
 */
const marked = (mark) => (text) => [mark, text];

/**
 * Follow the furthest reached points back from the ends of both lists.
 *
 * @param {Map<number, number>[]} steps
 * @param {string[]} before
 * @param {string[]} after
 * @returns {[string, string][]}
 */
function trace(steps, before, after) {
  /** @type {[string, string][]} */
  const result = [];
  let [x, y] = [before.length, after.length];
  for (let cost = steps.length - 1; cost >= 0; cost -= 1) {
    const reached = steps[cost];
    const diagonal = x - y;
    const down =
      diagonal === -cost ||
      (diagonal !== cost && (reached.get(diagonal - 1) ?? -1) < (reached.get(diagonal + 1) ?? -1));
    const from = down ? diagonal + 1 : diagonal - 1;
    const startX = cost ? (reached.get(from) ?? 0) : 0;
    const startY = cost ? startX - from : 0;
    while (x > startX && y > startY) result.push([" ", before[((y -= 1), (x -= 1))]]);
    if (!cost) break;
    if (down) result.push(["+", after[(y -= 1)]]);
    else result.push(["-", before[(x -= 1)]]);
  }
  return result.reverse();
}
