// The lines of a log that are in the document: a part that moves with the scroll position, so that any log can be read.

import { around, make, within } from "./page.js";

const MAX_LINES = 3000;
const NEAR = 600; // pixels from an edge, within which more lines are read

export class LogWindow {
  /**
   * `link(line)` is the address of a line, `near(edge)` is called near "top" and "bottom", `open(line)` when its link is clicked.
   *
   * @param {HTMLElement} box
   * @param {{ link: (offset: number) => string, near: (edge: Edge) => void, open: (offset: number) => void }} calls
   */
  constructor(box, { link, near, open }) {
    this.box = box;
    this.link = link;
    this.near = near;
    this.open = open;
    this.clear();
    box.addEventListener("scroll", () => this.checkEdges(), { passive: true });
    box.addEventListener("click", (event) => {
      const anchor = around(event, "a.at");
      if (!anchor || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      this.open(Number(anchor.parentElement?.dataset.offset));
    });
  }

  clear() {
    /** @type {LogLine[]} */
    this.lines = [];
    /** @type {number | null} */
    this.marked = null;
    this.box.replaceChildren();
  }

  /** @returns {HTMLElement[]} */
  get rows() {
    return [...this.box.querySelectorAll("span.line")];
  }

  get first() {
    return this.lines[0]?.offset ?? null;
  }
  get last() {
    return this.lines.at(-1) ?? null;
  }

  get isScrolledToEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
  }

  /**
   * Show these lines instead. `focusable` lines have links that the keyboard reaches.
   *
   * @param {LogLine[]} lines
   */
  show(lines, { focusable = false } = {}) {
    this.clear();
    this.append(lines, { focusable });
  }

  /** @param {LogLine[]} lines */
  prepend(lines) {
    this.keepPosition(() => {
      this.lines = [...lines, ...this.lines];
      this.box.prepend(...lines.map((line) => this.row(line)));
    });
  }

  /** @param {LogLine[]} lines */
  append(lines, { focusable = false } = {}) {
    this.lines.push(...lines);
    this.box.append(...lines.map((line) => this.row(line, focusable)));
  }

  /** Replace the last line, which was continued. */
  removeLast() {
    this.lines.pop();
    this.box.lastElementChild?.remove();
  }

  unmark() {
    for (const row of this.box.querySelectorAll(".marked")) row.classList.remove("marked");
    this.marked = null;
  }

  /**
   * Remove lines beyond the limit at an edge; true if there were some.
   *
   * @param {Edge} edge
   */
  trim(edge) {
    const excess = this.lines.length - MAX_LINES;
    if (excess <= 0) return false;
    this.keepPosition(() => {
      const removed = edge === "top" ? [...this.box.children].slice(0, excess) : [...this.box.children].slice(-excess);
      for (const row of removed) row.remove();
      this.lines.splice(edge === "top" ? 0 : -excess, excess);
    });
    return true;
  }

  /**
   * Mark the line with this byte, and scroll to it; false if it is not here.
   *
   * @param {number} offset
   */
  mark(offset) {
    const line = this.lines.findLast((one) => one.offset <= offset);
    if (!line) return false;
    this.unmark();
    const row = within(this.box, `[data-offset="${line.offset}"]`);
    row.classList.add("marked");
    this.marked = line.offset;
    this.box.scrollTop = row.offsetTop - this.box.clientHeight / 3;
    return true;
  }

  scrollToEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  /** @param {LogLine} line */
  row({ offset, text, level }, focusable = false) {
    const anchor = make("a", {
      class: "at",
      href: this.link(offset),
      tabindex: focusable ? undefined : "-1",
      "aria-label": "Link to this line",
    });
    return make("span", { class: `line${level ? ` ${level}` : ""}`, "data-offset": offset }, anchor, text);
  }

  checkEdges() {
    if (this.box.scrollTop < NEAR) this.near("top");
    if (this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR) this.near("bottom");
  }

  /**
   * Do a change above or below the visible lines without moving them.
   *
   * @param {() => void} change
   */
  keepPosition(change) {
    const top = this.box.scrollTop;
    const seen = this.rows.find((row) => row.offsetTop + row.offsetHeight > top);
    const distance = seen ? seen.offsetTop - top : 0;
    change();
    if (seen?.isConnected) this.box.scrollTop = seen.offsetTop - distance;
  }
}
