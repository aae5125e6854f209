// The order of a table whose heads sort its rows in the browser.

import { asNumber, specValue } from "./format.js";
import { make } from "./page.js";

export class RowOrder {
  /** `initial` is the column by which the page sorts at first; null: none. `changed()` is called when the reader has chosen another. */
  constructor(changed, initial = null) {
    Object.assign(this, { changed, initial, column: initial, isDescending: false, heads: new Map() });
  }

  /** The head of a column, with a button that sorts by it: ascending, then descending, then as at first. */
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

  /** Items, in the page's order, in that of the chosen column; those without a value are last. */
  sorted(items, valueOf) {
    if (this.column === null) return [...items];
    const direction = this.isDescending ? -1 : 1;
    const keyed = items.map((item) => [item, keyOf(valueOf(item, this.column))]);
    return keyed
      .sort(([, one], [, other]) => {
        if (one === null || other === null) return (one === null) - (other === null);
        return direction * compared(one, other);
      })
      .map(([item]) => item);
  }
}

/** What a value is sorted by: a number or a text; null if there is none. */
function keyOf(value) {
  if (value === null || value === undefined || value === "") return null;
  const number = typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(value) ? asNumber(value) : null;
  if (number === null) return typeof value === "string" ? value : specValue(value);
  return Number.isNaN(number) ? null : number;
}

/** Numbers are before texts. */
function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one === other ? 0 : one < other ? -1 : 1;
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return one.localeCompare(other, undefined, { numeric: true });
}

/** Put a row at a position of its body; what is there is not touched, and a moved row keeps its focus. */
export function place(body, row, n) {
  const there = body.children[n] ?? null;
  if (there === row) return;
  if (row.isConnected && body.moveBefore) body.moveBefore(row, there);
  else body.insertBefore(row, there);
}
