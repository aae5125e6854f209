// A text area with line numbers, indentation with Tab, and notes at lines with problems.

import { make, parts, within } from "./page.js";

const INDENT = "  ";

export class Editor {
  /**
   * @param {HTMLElement} root has a gutter, a text area and a layer for notes.
   * @param {() => void} changed is called on every change of the text.
   */
  constructor(root, changed) {
    this.area = within(root, "textarea", HTMLTextAreaElement);
    this.gutter = within(root, ".gutter");
    this.notes = within(root, ".notes");
    /** @type {Map<number, string[]>} */
    this.notesByLine = new Map();
    this.tabLeaves = false; // after Escape, Tab moves the focus
    this.area.addEventListener("input", () => {
      this.drawLines();
      changed();
    });
    this.area.addEventListener("scroll", () => {
      this.notes.style.transform = `translateX(${-this.area.scrollLeft}px)`;
    });
    this.area.addEventListener("keydown", (event) => this.onKey(event));
    this.drawLines();
  }

  get text() {
    return this.area.value;
  }

  /**
   * Replace the text in a way that can be undone.
   *
   * @param {string} text
   */
  replace(text) {
    this.area.focus({ preventScroll: true });
    this.area.select();
    this.type(text);
    this.area.setSelectionRange(0, 0);
  }

  /**
   * Insert text at the selection. `execCommand` keeps the undo history, which setting the value would clear.
   *
   * @param {string} text
   */
  type(text) {
    const done = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
    if (!done) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input"));
    }
  }

  /**
   * Show notes: pairs of a line, from 0, and a message.
   *
   * @param {[number, string][]} notes
   */
  setNotes(notes) {
    this.notesByLine = new Map();
    for (const [line, message] of notes) this.notesByLine.set(line, [...(this.notesByLine.get(line) ?? []), message]);
    this.area.setAttribute("aria-invalid", String(this.notesByLine.size > 0));
    this.drawLines();
  }

  /**
   * Move the cursor to the end of a line.
   *
   * @param {number} line
   */
  goTo(line) {
    const end = this.text
      .split("\n")
      .slice(0, line + 1)
      .join("\n").length;
    this.area.focus();
    this.area.setSelectionRange(end, end);
  }

  drawLines() {
    const lines = this.text.split("\n");
    this.area.style.height = `calc(${lines.length + 1} * var(--line-height) + 20px)`;
    this.gutter.replaceChildren(
      ...lines.map((_, n) => make("div", { text: String(n + 1), class: this.notesByLine.has(n) ? "invalid" : null })),
    );
    this.notes.replaceChildren(
      ...[...this.notesByLine]
        .filter(([line]) => line < lines.length)
        .map(([line, messages]) =>
          make(
            "div",
            { style: `top:calc(${line} * var(--line-height))`, title: messages.join("; ").replaceAll("`", "") },
            make(
              "span",
              { style: `margin-left:calc(${lines[line].length} * 1ch + 2ch)` },
              ...parts(messages.join("; ")),
            ),
          ),
        ),
    );
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "Escape") {
      this.tabLeaves = true;
      return;
    }
    const tabLeaves = this.tabLeaves;
    if (event.key !== "Shift") this.tabLeaves = false;
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Tab" && !tabLeaves) {
      event.preventDefault();
      this.indent(event.shiftKey);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      this.type(`\n${this.nextIndentation()}`);
    }
  }

  /** The indentation of the cursor's line, one level deeper after the name of a section. */
  nextIndentation() {
    const line = this.text.slice(0, this.area.selectionStart).split("\n").at(-1);
    return line.slice(0, line.search(/\S|$/)) + (/:\s*$/.test(line) ? INDENT : "");
  }

  /** @param {boolean} outdent */
  indent(outdent) {
    const { selectionStart: from, selectionEnd: to } = this.area;
    if (from === to && !outdent) {
      this.type(INDENT);
      return;
    }
    const begin = this.text.lastIndexOf("\n", from - 1) + 1;
    const lines = this.text.slice(begin, to);
    const shifted = outdent ? lines.replace(/^ {1,2}/gm, "") : lines.replace(/^(?=.)/gm, INDENT);
    if (shifted === lines) return;
    this.area.setSelectionRange(begin, to);
    this.type(shifted);
    const end = begin + shifted.length;
    this.area.setSelectionRange(from === to ? end : begin, end);
  }
}
