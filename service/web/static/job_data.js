// What the job learns of its data: an account of each source, with examples whose learned parts are marked.

import { call } from "./api.js";
import { count } from "./format.js";
import { byId, make, parts } from "./page.js";

// What a browser hides or obeys: control characters, characters without width, and changes of direction. Not line breaks.
const HIDDEN = /([\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff])/u;

/** The accounts of a job; the section is hidden until there are some. */
export class JobData {
  /** @param {string} jobId */
  constructor(jobId) {
    this.path = `/v1/jobs/${jobId}/data`;
  }

  async load() {
    const { data } = await call(this.path);
    byId("data-account").hidden = !data.length;
    byId("data-accounts").replaceChildren(...data.map(accountView));
  }
}

/** @param {Api.DataAccount} account */
function accountView(account) {
  const facts = make("ul", {}, ...account.summary.map((sentence) => make("li", {}, ...parts(sentence))));
  const examples = account.shown.flatMap((example) =>
    example.texts.map((text) => exampleView(account, example.number, text)),
  );
  return make("section", {}, make("h3", { class: "mono", text: account.section }), facts, ...examples);
}

/**
 * @param {Api.DataAccount} account
 * @param {number} number
 * @param {Api.ExampleText} text
 */
function exampleView(account, number, text) {
  const title = titleOf(account, number, text);
  const content = make("pre", { tabindex: 0, "aria-label": title }, ...text.parts.map(partView));
  return make("figure", { class: "example" }, make("figcaption", { text: title }), content);
}

/**
 * @param {Api.DataAccount} account
 * @param {number} number
 * @param {Api.ExampleText} text
 */
function titleOf(account, number, text) {
  const what = [text.name === "text" ? "" : text.name, text.label ?? ""].filter(Boolean).join(", ");
  const learned = text.learned_tokens ? `, ${count(text.learned_tokens)} of ${count(text.tokens)} tokens learned` : "";
  return `Example ${count(number)} of ${count(account.examples)}${what && `, ${what}`}${learned}`;
}

/** @param {Api.TextPart} part */
function partView(part) {
  if (part.omitted_tokens)
    return make("small", { class: "omitted", text: `\n… ${count(part.omitted_tokens)} tokens …\n` });
  if (!part.learned) return make("span", {}, ...visible(part.text));
  const begin = make("span", { class: "visually-hidden", text: "learned: " });
  const end = make("span", { class: "visually-hidden", text: " end of learned" });
  return make("mark", { class: "learned" }, begin, ...visible(part.text), end);
}

/**
 * Text with escapes such as \\x1b for characters that a browser hides or obeys.
 *
 * @param {string} text
 */
function visible(text) {
  return text
    .split(HIDDEN)
    .map((piece, n) => (n % 2 ? make("span", { class: "control", text: escaped(piece) }) : piece));
}

/** @param {string} character */
function escaped(character) {
  if (character === "\t") return "\\t";
  if (character === "\r") return "\\r";
  const code = character.codePointAt(0) ?? 0;
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}
