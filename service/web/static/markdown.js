// Notes in Markdown as elements. Every text becomes a text node and only web addresses become links, so nothing is run.

import { make } from "./page.js";

const INLINE =
  /(`[^`]+`)|\*\*([^*]+)\*\*|(?<![\w*])\*([^*\s][^*]*)\*(?!\w)|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()]+)/g;
const MAX_BLOCKS = 2000;
/** @type {("h3" | "h4" | "h5" | "h6")[]} */
const HEADINGS = ["h3", "h4", "h5", "h6", "h6", "h6"]; // the page has the levels above

/**
 * The elements of a text: headings, lists, quotes, code, paragraphs; in them bold, italics, code and links.
 *
 * @param {string} text
 */
export function markdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  /** @type {HTMLElement[]} */
  const blocks = [];
  while (lines.length && blocks.length < MAX_BLOCKS) {
    const block = nextBlock(lines);
    if (block) blocks.push(block);
  }
  return blocks;
}

/**
 * @param {string[]} lines
 * @returns {HTMLElement | null}
 */
function nextBlock(lines) {
  const line = lines.shift() ?? "";
  if (!line.trim()) return null;
  if (line.startsWith("```")) {
    const end = lines.findIndex((one) => one.startsWith("```"));
    const code = lines.splice(0, end < 0 ? lines.length : end);
    lines.shift();
    return make("pre", {}, make("code", { text: code.join("\n") }));
  }
  const heading = /^(#{1,6})\s+(.*)$/.exec(line);
  if (heading) return make(HEADINGS[heading[1].length - 1], {}, ...inline(heading[2]));
  if (/^\s*([-*+]|\d+[.)])\s+/.test(line))
    return list([line, ...takeWhile(lines, (one) => /^\s*([-*+]|\d+[.)])\s+|^\s{2,}\S/.test(one))]);
  if (line.startsWith(">")) {
    const quote = [line, ...takeWhile(lines, (one) => one.startsWith(">"))].map((one) => one.replace(/^>\s?/, ""));
    return make("blockquote", {}, ...inline(quote.join("\n")));
  }
  const rest = takeWhile(lines, (one) => one.trim() && !/^(```|#{1,6}\s|>|\s*([-*+]|\d+[.)])\s)/.test(one));
  return make("p", {}, ...inline([line, ...rest].join("\n")));
}

/** @param {string[]} lines */
function list(lines) {
  const items = lines.map((line) => make("li", {}, ...inline(line.replace(/^\s*([-*+]|\d+[.)])\s+/, ""))));
  return make(/^\s*\d/.test(lines[0]) ? "ol" : "ul", {}, ...items);
}

/**
 * @param {string[]} lines
 * @param {(line: string) => unknown} matches
 */
function takeWhile(lines, matches) {
  const end = lines.findIndex((line) => !matches(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}

/**
 * @param {string} text
 * @returns {(Node | string)[]}
 */
function inline(text) {
  /** @type {(Node | string)[]} */
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, bold, italic, label, target, address] = match;
    parts.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (code) parts.push(make("code", { text: code.slice(1, -1) }));
    else if (bold) parts.push(make("strong", { text: bold }));
    else if (italic) parts.push(make("em", { text: italic }));
    else
      parts.push(make("a", { href: target ?? address, rel: "noopener noreferrer nofollow", text: label ?? address }));
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}
