// The order of a table whose heads sort its rows in the browser.

import { asNumber, specValue } from "./format.js";
import { make } from "./page.js";

export class RowOrder {
  /**
   * `initial` is the column by which the page sorts at first; null: none. `changed()` is called when the reader has chosen another.
   *
   * @param {() => void} changed
   * @param {Sorted | null} initial
   */
  constructor(changed, initial = null) {
    this.changed = changed;
    this.initial = initial;
    this.column = initial;
    this.isDescending = false;
    /** @type {Map<Sorted, HTMLElement>} */
    this.heads = new Map();
  }

  /**
   * The head of a column, with a button that sorts by it: ascending, then descending, then as at first.
   *
   * @param {Sorted} column
   * @param {Properties} properties
   * @param {...Child} content
   */
  head(column, properties, ...content) {
    const head = make(
      "th",
      { scope: "col", ...properties },
      make("button", { type: "button", class: "sort", onclick: () => this.choose(column) }, ...content),
    );
    this.heads.set(column, head);
    this.show();
    return head;
  }

  /** @param {Sorted} column */
  choose(column) {
    if (column !== this.column) Object.assign(this, { column, isDescending: false });
    else if (!this.isDescending) this.isDescending = true;
    else Object.assign(this, { column: this.initial, isDescending: false });
    this.show();
    this.changed();
  }

  show() {
    for (const [column, head] of this.heads) {
      if (column !== this.column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.isDescending ? "descending" : "ascending");
    }
  }

  /**
   * Items, in the page's order, in that of the chosen column; those without a value are last.
   *
   * @template T
   * @param {T[]} items
   * @param {(item: T, column: any) => unknown} valueOf
   */
  sorted(items, valueOf) {
    if (this.column === null) return [...items];
    const direction = this.isDescending ? -1 : 1;
    const keyed = items.map((item) => ({ item, key: keyOf(valueOf(item, this.column)) }));
    return keyed
      .sort(({ key: one }, { key: other }) => {
        if (one === null || other === null) return Number(one === null) - Number(other === null);
        return direction * compared(one, other);
      })
      .map(({ item }) => item);
  }
}

/**
 * What a value is sorted by: a number or a text; null if there is none.
 *
 * @param {any} value
 * @returns {string | number | null}
 */
function keyOf(value) {
  if (value === null || value === undefined || value === "") return null;
  const number = typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(value) ? asNumber(value) : null;
  if (number === null) return typeof value === "string" ? value : specValue(value);
  return Number.isNaN(number) ? null : number;
}

/**
 * Numbers are before texts.
 *
 * @param {string | number} one
 * @param {string | number} other
 */
function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one === other ? 0 : one < other ? -1 : 1;
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

/**
 * Put a row at a position of its body; what is there is not touched, and a moved row keeps its focus.
 *
 * @param {HTMLElement} body
 * @param {HTMLElement} row
 * @param {number} n
 */
export function place(body, row, n) {
  const there = body.children[n] ?? null;
  if (there === row) return;
  if (row.isConnected && body.moveBefore) body.moveBefore(row, there);
  else body.insertBefore(row, there);
}
