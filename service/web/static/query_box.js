// The filter box: a text field that completes keys, operators and values, and marks where a query is wrong.

import { call } from "./api.js";
import { around, byId, make, setMessage, setText, within } from "./page.js";
import { columnOf, completions, corrections } from "./query_completion.js";

/** @type {Promise<JobKey[]> | null} */
let known = null;

/**
 * The keys that queries can use, read once.
 *
 * @returns {Promise<JobKey[]>}
 */
export function jobKeys() {
  known ??= call("/v1/job-keys").then(
    ({ data }) => data,
    (error) => {
      known = null;
      throw error;
    },
  );
  return known;
}

/** Forget the keys, so that new ones are read. */
export const forgetKeys = () => {
  known = null;
};

export class QueryBox {
  /**
   * `apply(text)` is called when the user has finished a query, `edited()` when its text changes.
   *
   * @param {HTMLInputElement} input
   * @param {HTMLElement} list
   * @param {HTMLElement} error
   * @param {QueryCalls} calls
   */
  constructor(input, list, error, { apply, edited }) {
    this.input = input;
    this.list = list;
    this.error = error;
    this.apply = apply;
    this.edited = edited;
    /** @type {Completion[]} */
    this.options = [];
    this.start = 0;
    this.active = -1;
    this.applied = input.value;
    input.addEventListener("input", () => {
      this.edited();
      this.suggest();
    });
    input.addEventListener("focus", () => this.suggest());
    input.addEventListener("click", () => this.suggest());
    input.addEventListener("blur", () => {
      this.close();
      this.finish();
    });
    input.addEventListener("keydown", (event) => this.keydown(event));
    list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the field keeps the focus
      const option = around(event, "[role=option]");
      if (option) this.choose(Number(option.dataset.n));
    });
  }

  /** Whether the table is that of the text. */
  get isApplied() {
    return this.input.value.trim() === this.applied;
  }

  /**
   * Show a query, as applied.
   *
   * @param {string} text
   */
  set(text) {
    this.input.value = this.applied = text;
    this.showError(null);
  }

  /**
   * Show what is wrong with the query; null: nothing.
   *
   * @param {string | null} message
   */
  showError(message) {
    const column = message === null ? null : columnOf(message);
    this.input.setAttribute("aria-invalid", String(message !== null));
    this.error.hidden = message === null;
    setMessage(within(this.error, "span"), message ?? "");
    setText(within(this.error, "pre code"), column === null ? "" : `${this.input.value}\n${" ".repeat(column)}^`);
    const proposed = message === null ? [] : corrections(message, this.input.value);
    within(this.error, ".corrections").replaceChildren(
      ...proposed.map(({ name, text }) =>
        make("button", { type: "button", text: `Use ${name}`, onclick: () => this.correct(text) }),
      ),
    );
    if (column !== null && document.activeElement === this.input)
      this.input.setSelectionRange(column, this.input.value.length);
  }

  /**
   * Apply a query that is proposed.
   *
   * @param {string} text
   */
  correct(text) {
    this.input.value = text;
    this.input.focus();
    this.close();
    this.finish(true);
  }

  async suggest() {
    const keys = await jobKeys().catch(() => []);
    if (document.activeElement !== this.input) return;
    const { start, options } = completions(this.input.value, this.input.selectionStart ?? 0, keys);
    this.start = start;
    this.options = options;
    this.active = -1;
    this.list.replaceChildren(
      ...options.map(({ text, note }, n) =>
        make(
          "li",
          { role: "option", id: `${this.list.id}-${n}`, "data-n": String(n), "aria-selected": "false" },
          make("span", { text: text.trim() }),
          make("small", { text: note }),
        ),
      ),
    );
    this.list.hidden = options.length === 0;
    this.input.setAttribute("aria-expanded", String(options.length > 0));
    this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {KeyboardEvent} event */
  keydown(event) {
    const open = !this.list.hidden;
    if (event.key === "Escape" && open) this.close();
    else if (event.key === "Enter") {
      if (open && this.active >= 0) this.choose(this.active);
      else {
        this.close();
        this.finish(true);
      }
    } else if (event.key === "Tab" && open && this.active >= 0) this.choose(this.active);
    else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp"))
      this.move(event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
  }

  /** @param {number} by */
  move(by) {
    this.active = (this.active + by + this.options.length + (this.active < 0 && by < 0 ? 1 : 0)) % this.options.length;
    [...this.list.children].forEach((option, n) => option.setAttribute("aria-selected", String(n === this.active)));
    const option = this.list.children[this.active];
    option.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", option.id);
  }

  /** @param {number} n */
  choose(n) {
    const { value } = this.input;
    const { text, whole } = this.options[n];
    if (whole) return this.correct(text);
    const rest = value.slice(this.input.selectionStart ?? value.length);
    this.input.value = value.slice(0, this.start) + (rest.startsWith(" ") ? text.trimEnd() : text) + rest;
    const end = this.start + text.length;
    this.input.setSelectionRange(end, end);
    this.edited();
    this.suggest();
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /** Apply the query if it has changed; with `again`, in any case. */
  finish(again = false) {
    const typed = this.input.value.trim();
    const text = again ? searchOf(typed) : typed;
    if (text === this.applied && !again) return;
    if (text !== typed) this.input.value = text;
    this.applied = text;
    this.edited();
    this.apply(text);
  }
}

/**
 * A single word is no query: it searches the names and owners of jobs.
 *
 * @param {string} text
 */
const searchOf = (text) => (/^[\p{L}\p{N}_.@-]+$/u.test(text) ? `name ~ "${text}" or user ~ "${text}"` : text);

/**
 * The filter box of a page.
 *
 * @param {QueryCalls} calls
 */
export const queryBox = (calls) =>
  new QueryBox(byId("where", HTMLInputElement), byId("where-options"), byId("where-error"), calls);
