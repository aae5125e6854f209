// A plain text area with line numbers, indentation by Tab, and notes at the lines that something is wrong with.

import { make } from "./page.js";

const STEP = "  ";

export class Editor {
  /** `root` holds a gutter, a text area and a place for notes; `changed()` is called at every change of the text. */
  constructor(root, changed) {
    this.area = root.querySelector("textarea");
    this.gutter = root.querySelector(".gutter");
    this.notes = root.querySelector(".notes");
    this.marked = new Map();
    this.leaving = false;
    this.area.addEventListener("input", () => { this.number(); changed(); });
    this.area.addEventListener("scroll", () => { this.notes.style.transform = `translateX(${-this.area.scrollLeft}px)`; });
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.number();
  }

  get text() {
    return this.area.value;
  }

  /** Another text, in such a way that undo brings back the one before. */
  replace(text) {
    this.area.focus({ preventScroll: true });
    this.area.select();
    this.type(text);
    this.area.setSelectionRange(0, 0);
  }

  /** What was there before and after may be undone; setting the value would forget it. */
  type(text) {
    const done = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
    if (!done) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input"));
    }
  }

  /** Notes at lines: pairs of a line, from 0, and words. */
  mark(notes) {
    this.marked = new Map();
    for (const [line, words] of notes) this.marked.set(line, [...(this.marked.get(line) ?? []), words]);
    this.area.toggleAttribute("aria-invalid", false);
    this.area.setAttribute("aria-invalid", String(this.marked.size > 0));
    this.number();
  }

  /** Put the cursor at the end of a line, in sight. */
  goTo(line) {
    const before = this.text.split("\n").slice(0, line + 1).join("\n").length;
    this.area.focus();
    this.area.setSelectionRange(before, before);
  }

  number() {
    const lines = this.text.split("\n");
    this.area.style.height = `calc(${lines.length + 1} * var(--tall) + 20px)`;
    this.gutter.replaceChildren(...lines.map((_, n) => make("div", { text: String(n + 1), class: this.marked.has(n) ? "wrong" : null })));
    this.notes.replaceChildren(...[...this.marked].filter(([line]) => line < lines.length).map(([line, words]) => make("div", {
      style: `top:calc(${line} * var(--tall))`, title: words.join("; ") },
    make("span", { text: words.join("; "), style: `margin-left:calc(${lines[line].length} * 1ch + 2ch)` }))));
  }

  key(event) {
    if (event.key === "Escape") { this.leaving = true; return; }
    const leaving = this.leaving;
    if (event.key !== "Shift") this.leaving = false;
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Tab" && !leaving) { event.preventDefault(); this.indent(event.shiftKey); }
    if (event.key === "Enter") { event.preventDefault(); this.type(`\n${this.indentation()}`); }
  }

  /** Of the line of the cursor; one more after the name of a section. */
  indentation() {
    const line = this.text.slice(0, this.area.selectionStart).split("\n").at(-1);
    return /^\s*/.exec(line)[0] + (/:\s*$/.test(line) ? STEP : "");
  }

  indent(back) {
    const { selectionStart: from, selectionEnd: to } = this.area;
    if (from === to && !back) { this.type(STEP); return; }
    const begin = this.text.lastIndexOf("\n", from - 1) + 1;
    const chosen = this.text.slice(begin, to);
    const shifted = back ? chosen.replace(/^ {1,2}/gm, "") : chosen.replace(/^(?=.)/gm, STEP);
    if (shifted === chosen) return;
    this.area.setSelectionRange(begin, to);
    this.type(shifted);
    const end = begin + shifted.length;
    this.area.setSelectionRange(from === to ? end : begin, end);
  }
}
