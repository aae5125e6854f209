// The filter box: a text field that completes keys, operators and values, and marks where a query is wrong.

import { call } from "./api.js";
import { byId, make, setMessage, setText } from "./page.js";
import { columnOf, completions, corrections } from "./query_completion.js";

let known = null;

/** The keys that queries can use, read once. */
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
  /** `apply(text)` is called when the user has finished a query, `edited()` when its text changes. */
  constructor(input, list, error, { apply, edited }) {
    Object.assign(this, { input, list, error, apply, edited, options: [], start: 0, active: -1, applied: input.value });
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
      const option = event.target.closest("[role=option]");
      if (option) this.choose(Number(option.dataset.n));
    });
  }

  /** Whether the table is that of the text. */
  get isApplied() {
    return this.input.value.trim() === this.applied;
  }

  /** Show a query, as applied. */
  set(text) {
    this.input.value = this.applied = text;
    this.showError(null);
  }

  /** Show what is wrong with the query; null: nothing. */
  showError(message) {
    const column = message === null ? null : columnOf(message);
    this.input.setAttribute("aria-invalid", String(message !== null));
    this.error.hidden = message === null;
    setMessage(this.error.querySelector("span"), message ?? "");
    setText(this.error.querySelector("pre code"), column === null ? "" : `${this.input.value}\n${" ".repeat(column)}^`);
    const proposed = message === null ? [] : corrections(message, this.input.value);
    this.error
      .querySelector(".corrections")
      .replaceChildren(
        ...proposed.map(({ name, text }) =>
          make("button", { type: "button", text: `Use ${name}`, onclick: () => this.correct(text) }),
        ),
      );
    if (column !== null && document.activeElement === this.input)
      this.input.setSelectionRange(column, this.input.value.length);
  }

  /** Apply the query that an error proposed. */
  correct(text) {
    this.input.value = text;
    this.input.focus();
    this.close();
    this.finish(true);
  }

  async suggest() {
    const keys = await jobKeys().catch(() => []);
    if (document.activeElement !== this.input) return;
    const { start, options } = completions(this.input.value, this.input.selectionStart, keys);
    Object.assign(this, { start, options, active: -1 });
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

  move(by) {
    this.active = (this.active + by + this.options.length + (this.active < 0 && by < 0 ? 1 : 0)) % this.options.length;
    for (const option of this.list.children)
      option.setAttribute("aria-selected", String(Number(option.dataset.n) === this.active));
    const option = this.list.children[this.active];
    option.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", option.id);
  }

  choose(n) {
    const { value, selectionStart } = this.input;
    const { text } = this.options[n];
    const rest = value.slice(selectionStart);
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
    const text = this.input.value.trim();
    if (text === this.applied && !again) return;
    this.applied = text;
    this.edited();
    this.apply(text);
  }
}

/** The filter box of a page. */
export const queryBox = (calls) => new QueryBox(byId("where"), byId("where-options"), byId("where-error"), calls);
