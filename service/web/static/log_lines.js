// Lines of a log: cut out of bytes with their offsets, and cleaned for display. Pure functions.

const MAX_LINE_LENGTH = 4000;
const CUT = ` … [line cut after ${MAX_LINE_LENGTH} characters; download the log for the rest]`;
// Escape sequences of terminals, for colours and cursor moves, and control characters.
const ESCAPES =
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[PX^_][^\u001b]*\u001b\\|[ -/]+[0-~]|[@-Z\\-_])|\u009b[0-?]*[ -/]*[@-~]|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
const NEWLINE = 10;

/**
 * The lines of a text without escape sequences; of an overwritten line, what was written last; long lines cut.
 *
 * @param {string} text
 */
export const cleanLines = (text) =>
  text
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => cut(lastWritten(line).replace(ESCAPES, "")));

/** @param {string} line */
const lastWritten = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1);

/** @param {string} line */
const cut = (line) => (line.length > MAX_LINE_LENGTH ? line.slice(0, MAX_LINE_LENGTH) + CUT : line);

/**
 * One line of a log for display: the offset of its first byte, its raw text, and its cleaned text.
 *
 * @param {number} offset
 * @param {string} raw
 * @returns {LogLine}
 */
const lineOf = (offset, raw) => ({ offset, raw, text: cleanLines(raw.replace(/\n$/, "")).join(" ") });

/**
 * The lines of bytes that begin at `offset` in the log; the last one may have no end.
 *
 * @param {Uint8Array} bytes
 * @param {number} offset
 */
export function linesOf(bytes, offset) {
  const decoder = new TextDecoder();
  /** @type {LogLine[]} */
  const lines = [];
  for (let start = 0; start < bytes.length; ) {
    const end = bytes.indexOf(NEWLINE, start);
    const next = end < 0 ? bytes.length : end + 1;
    lines.push(lineOf(offset + start, decoder.decode(bytes.subarray(start, next))));
    start = next;
  }
  return lines;
}

/**
 * The lines of a text of the stream that begins at `offset`. `last` is the line before, which it continues if that has no end.
 *
 * @param {LogLine | null} last
 * @param {number} offset
 * @param {string} text
 */
export function continuedLines(last, offset, text) {
  const encoder = new TextEncoder();
  const open = last && !last.raw.endsWith("\n") ? last : null;
  const lines = [];
  let position = offset;
  for (const part of text.split(/(?<=\n)/)) {
    lines.push(!lines.length && open ? lineOf(open.offset, open.raw + part) : lineOf(position, part));
    position += encoder.encode(part).length;
  }
  return { replaces: open !== null, lines };
}

/**
 * The latest time with hours and minutes in a text such as `14:05`, `14:05:30` or `2026-01-31 14:05`, not after `until`; null if it is none.
 *
 * @param {string} text
 * @param {Date} until
 */
export function timeIn(text, until) {
  const clock = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(text.trim());
  if (!clock) {
    const date = /^\d{4}-\d{2}-\d{2}/.test(text.trim()) ? new Date(text.trim()) : null;
    return date && !Number.isNaN(date.getTime()) ? date : null;
  }
  const date = new Date(until);
  date.setHours(Number(clock[1]), Number(clock[2]), Number(clock[3] ?? 0), 0);
  if (date > until) date.setDate(date.getDate() - 1);
  return date;
}
