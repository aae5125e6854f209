// What can follow at a position of a query: keys, operators, values or `and`. Pure functions.

const WORD = /(?:`(?:[^`]|``)*|[\w./@%:-]*)$/; // a name, or what follows a backtick that is not closed
const IN_BACKTICKS = /`(?:[^`]|``)+`/g;
const RESERVED = ["and", "or", "not", "in", "exists"];
const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "~", "in (", "is"];
const STATES = ["nan", "inf", "empty"];
const STATUSES = ["succeeded", "running", "failed", "queued", "pending", "paused", "cancelled", "lost"];
const AGGREGATES = ["min(", "max(", "last(", "best(", "best_step(", "min_step(", "max_step("];
const COMPARED =
  /(\w+\((?:`(?:[^`]|``)+`|[^)]*)\)|`(?:[^`]|``)+`|[A-Za-z_][\w./@%:-]*)(?:\s*[=!<>~]+|\s+(?:not\s+)?in\s*\([^)]*)\s*$/i;
const MAX_SHOWN = 12;
/** Whole queries, which an empty filter offers, and one with a word of their notes. */
export const EXAMPLES = [
  { text: "diverged = true and age < 7d", note: "Diverged in the last 7 days", whole: true },
  { text: "status = failed and age < 1d", note: "Failed in the last day", whole: true },
];

/**
 * The completions at a position: `{ start, options }`, where each option replaces the text from `start` on. `keys` are those
 * of the service: `{ key, kind, description }`.
 *
 * @param {string} text
 * @param {number} position
 * @param {JobKey[]} keys
 */
export function completions(text, position, keys) {
  const before = text.slice(0, position);
  const word = WORD.exec(before.replace(IN_BACKTICKS, (name) => ")".repeat(name.length)))?.[0] ?? "";
  const start = position - word.length;
  const head = before.slice(0, start).trimEnd();
  const part = word.replace("`", "").replaceAll("``", "`").toLowerCase();
  const options = optionsAfter(head, part, keys).filter(
    (one) => !word.startsWith("`") || !AGGREGATES.includes(one.text),
  );
  return { start, options: options.slice(0, MAX_SHOWN) };
}

/**
 * @param {string} head
 * @param {string} part
 * @param {JobKey[]} keys
 * @returns {Completion[]}
 */
function optionsAfter(head, part, keys) {
  const compared = COMPARED.exec(head);
  if (compared) return valuesOf(compared[1], keys).filter((one) => one.text.toLowerCase().includes(part));
  if (/\sis\s+not$/i.test(head)) return words(STATES, part);
  if (head === "" || /(?:^|[\s(])(?:and|or|not|exists)$/i.test(head) || head.endsWith("(")) {
    const whole = head === "" ? EXAMPLES : [];
    const begun = whole.filter(({ note }) =>
      note
        .toLowerCase()
        .split(" ")
        .some((one) => one.startsWith(part)),
    );
    return [...begun, ...keyOptions(part, keys, head)];
  }
  if (/[^=!<>~,(\s]\s+is$/i.test(head)) return words([...STATES, "not"], part);
  if (/\sis\s+(?:not\s+)?(?:nan|inf|empty)$/i.test(head)) return words(["and", "or"], part);
  if (/[=!<>~]\s*\S+$|\)$|["'`]$/.test(head) || /\bexists\s+\S+$/i.test(head)) return words(["and", "or"], part);
  return part ? words(["is"], part) : OPERATORS.map((text) => ({ text: `${text} `.replace("( ", "("), note: "" }));
}

/**
 * @param {string[]} list
 * @param {string} part
 */
const words = (list, part) => list.filter((one) => one.startsWith(part)).map((one) => ({ text: `${one} `, note: "" }));

/**
 * @param {string} key
 * @param {JobKey[]} keys
 */
function valuesOf(key, keys) {
  if (key === "status") return STATUSES.map((text) => ({ text: `${text} `, note: "" }));
  if (key === "tag")
    return keys
      .filter(({ kind }) => kind === "tag")
      .map(({ key: name }) => ({ text: `${quoted(name.slice("tags.".length))} `, note: "tag" }));
  if (["archived", "diverged"].includes(key)) return ["true", "false"].map((text) => ({ text: `${text} `, note: "" }));
  return [];
}

/** @param {string} text */
const quoted = (text) => (/^[A-Za-z_][\w./@%-]*$/.test(text) ? text : JSON.stringify(text));

/**
 * Keys that contain the part: those that begin with it first, then those with a part of their path that does.
 *
 * @param {string} part
 * @param {JobKey[]} keys
 * @param {string} head
 */
function keyOptions(part, keys, head) {
  const inside = /(?:min|max|last|best|best_step|min_step|max_step)\($/i.test(head);
  const rank = (/** @type {JobKey} */ { key }) => {
    const name = key.toLowerCase();
    if (!part || name.startsWith(part)) return 0;
    return name.split(/[./]/).some((one) => one.startsWith(part)) ? 1 : name.includes(part) ? 2 : 3;
  };
  const found = keys.filter((one) => rank(one) < 3 && (!inside || one.kind === "metric"));
  found.sort((one, other) => rank(one) - rank(other));
  const options = found.map(({ key, kind, description }) => ({
    text: `${nameInQuery(key)}${inside ? ") " : " "}`,
    note: description ?? kind,
  }));
  const functions =
    part && !inside
      ? AGGREGATES.filter((one) => one.startsWith(part)).map((text) => ({ text, note: "of a metric" }))
      : [];
  return [...functions, ...options];
}

/**
 * A key as a query has it: in backticks if it has other characters than names.
 *
 * @param {string} key
 */
export const nameInQuery = (key) =>
  /^[A-Za-z_][\w./@%:-]*$/.test(key) && !/[.:-]$/.test(key) && !RESERVED.includes(key.toLowerCase())
    ? key
    : `\`${key.replaceAll("`", "``")}\``;

/**
 * The column that the message of an error names, from 0; null if it names none.
 *
 * @param {string} message
 */
export function columnOf(message) {
  const match = /\(column (\d+)\)$/.exec(message);
  return match ? Number(match[1]) - 1 : null;
}

/**
 * The queries that the message of an error proposes: `{ name, text }`, with the name in place of the unknown one.
 *
 * @param {string} message
 * @param {string} text
 */
export function corrections(message, text) {
  const [, unknown, proposed] = /`((?:[^`]|``)+)`; did you mean (.+)\? \(column \d+\)$/.exec(message) ?? [];
  if (!unknown) return [];
  const from = columnOf(message) ?? 0;
  const name = new RegExp(`(?<![\\w./@%:-])\`?${unknown.replace(/[^\w\s]/g, "\\$&")}\`?(?![\\w/@%-])`).exec(
    text.slice(from),
  );
  if (!name) return [];
  const [place, length] = [from + name.index, name[0].length];
  return [...proposed.matchAll(IN_BACKTICKS)]
    .map(([one]) => one.slice(1, -1).replaceAll("``", "`"))
    .map((one) => ({ name: one, text: text.slice(0, place) + nameInQuery(one) + text.slice(place + length) }));
}
