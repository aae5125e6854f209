// Lines of a diff as text, each coloured by its mark.

import { count } from "./format.js";
import { make } from "./page.js";

const MAX_LINES = 5000;

/**
 * Show lines of a diff as text, each coloured by its mark.
 *
 * @param {HTMLElement} element
 * @param {string[]} lines
 */
export function showDiff(element, lines) {
  const kind = (/** @type {string} */ line) =>
    /^(\+\+\+|---|diff |index |new file|deleted file|rename )/.test(line)
      ? "path"
      : ({ "+": "added", "-": "removed", "@": "hunk" }[line[0]] ?? "");
  element.hidden = false;
  const left =
    lines.length > MAX_LINES
      ? [make("span", { class: "hunk", text: `… ${count(lines.length - MAX_LINES)} more lines` })]
      : [];
  element.replaceChildren(
    ...lines.slice(0, MAX_LINES).map((line) => make("span", { class: kind(line) || false, text: `${line}\n` })),
    ...left,
  );
}
