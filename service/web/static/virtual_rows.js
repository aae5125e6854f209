// A table body with rows of equal height, of which only the visible ones are in the document, between two spacers.

import { within } from "./page.js";
const MARGIN = 12; // rows in the document above and below the visible ones

export class VirtualRows {
  /**
   * `create(id)` makes an empty row, `fill(row, id)` fills it, `kindOf(id)` tells which rows can be filled for one another,
   * `visible(ids)` gets the drawn ids, `nearEnd()` is called near the last row. `scroller` may scroll besides the window.
   *
   * @param {HTMLElement} body
   * @param {VirtualRowsOptions} options
   */
  constructor(body, { scroller, create, fill, kindOf, visible, nearEnd }) {
    this.body = body;
    this.scroller = scroller;
    this.create = create;
    this.fill = fill;
    this.kindOf = kindOf;
    this.visible = visible;
    this.nearEnd = nearEnd;
    /** @type {string[]} */
    this.ids = [];
    /** @type {Map<string, HTMLElement>} */
    this.rows = new Map();
    this.above = newSpacer();
    this.below = newSpacer();
    this.range = [-1, -1];
    /** @type {number | undefined} */
    this.frame = undefined;
    this.height = this.measure();
    for (const one of [window, scroller]) one.addEventListener("scroll", () => this.schedule(), { passive: true });
    addEventListener("resize", () => {
      this.height = this.measure();
      this.range = [-1, -1];
      this.schedule();
    });
  }

  /**
   * Show these rows in this order.
   *
   * @param {string[]} ids
   */
  show(ids) {
    this.ids = ids;
    this.range = [-1, -1];
    this.draw();
  }

  /** Make all rows again, for other columns. */
  rebuild() {
    this.rows.clear();
    this.body.replaceChildren();
    this.height = this.measure();
    this.show(this.ids);
  }

  /**
   * Fill one drawn row again, or all of them.
   *
   * @param {string} [id]
   */
  refresh(id) {
    for (const [one, row] of this.rows) if (id === undefined || one === id) this.fill(row, one);
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  measure() {
    return parseFloat(getComputedStyle(this.body).getPropertyValue("--row"));
  }

  draw() {
    const frame = this.scroller.getBoundingClientRect();
    const start = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor((Math.max(0, frame.top) - start) / this.height) - MARGIN);
    // To the end of the window, since the scroller grows with its first rows.
    const last = Math.min(this.ids.length, Math.ceil((innerHeight - start) / this.height) + MARGIN);
    if (last > this.ids.length - MARGIN * 3) this.nearEnd();
    if (first === this.range[0] && last === this.range[1]) return;
    this.range = [first, last];
    this.drawRange(this.ids.slice(first, last), first, this.ids.length - Math.max(first, last));
  }

  /**
   * @param {string[]} ids
   * @param {number} before
   * @param {number} after
   */
  drawRange(ids, before, after) {
    const drawn = new Set(ids);
    // Rows that leave the range are reused for other jobs, except the one with the focus.
    const reusable = /** @type {Record<string, HTMLElement[]>} */ ({});
    for (const [id, row] of this.rows)
      if (!drawn.has(id) && !row.contains(document.activeElement)) (reusable[this.kindOf(id)] ??= []).push(row);
    const rows = new Map(
      ids.map((id) => [id, this.rows.get(id) ?? reusable[this.kindOf(id)]?.pop() ?? this.create(id)]),
    );
    for (const [id, row] of rows) this.fill(row, id);
    this.rows = rows;
    setHeight(this.above, before * this.height);
    setHeight(this.below, after * this.height);
    const order = [this.above, ...rows.values(), this.below];
    const remaining = new Set(order);
    for (const child of this.body.querySelectorAll(":scope > tr")) if (!remaining.has(child)) child.remove();
    // A row that is already in position is not moved, so that focus and hover stay.
    order.forEach((row, i) => {
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null);
    });
    this.visible(ids);
  }
}

function newSpacer() {
  const row = document.createElement("tr");
  row.className = "spacer";
  row.setAttribute("aria-hidden", "true");
  row.appendChild(document.createElement("td"));
  return row;
}

/**
 * @param {HTMLElement} row
 * @param {number} height
 */
function setHeight(row, height) {
  row.hidden = height <= 0;
  within(row, "td").style.height = `${Math.max(0, height)}px`;
}
