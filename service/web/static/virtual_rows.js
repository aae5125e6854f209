// A table body with rows of equal height, of which only the visible ones are in the document, between two spacers.

const MARGIN = 12; // rows in the document above and below the visible ones

export class VirtualRows {
  /** `create()` makes an empty row, `fill(row, id)` fills it, `visible(ids)` gets the drawn ids, `nearEnd()` is called near the last row. */
  constructor(body, { columns, create, fill, visible, nearEnd }) {
    Object.assign(this, { body, create, fill, visible, nearEnd });
    this.ids = [];
    this.rows = new Map();
    this.above = newSpacer(columns);
    this.below = newSpacer(columns);
    this.range = [-1, -1];
    this.measure();
    addEventListener("scroll", () => this.schedule(), { passive: true });
    addEventListener("resize", () => { this.measure(); this.range = [-1, -1]; this.schedule(); });
  }

  /** Show these rows in this order. */
  show(ids) {
    this.ids = ids;
    this.range = [-1, -1];
    this.draw();
  }

  /** Fill one drawn row again, or all of them. */
  refresh(id) {
    if (id === undefined) for (const [one, row] of this.rows) this.fill(row, one);
    else if (this.rows.has(id)) this.fill(this.rows.get(id), id);
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => { this.frame = undefined; this.draw(); });
  }

  measure() {
    this.height = parseFloat(getComputedStyle(this.body.parentElement).getPropertyValue("--row"));
  }

  draw() {
    const top = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / this.height) - MARGIN);
    const last = Math.min(this.ids.length, Math.ceil((top + innerHeight) / this.height) + MARGIN);
    if (last > this.ids.length - MARGIN * 3) this.nearEnd();
    if (first === this.range[0] && last === this.range[1]) return;
    this.range = [first, last];
    this.drawRange(this.ids.slice(first, last), first, this.ids.length - Math.max(first, last));
  }

  drawRange(ids, before, after) {
    const drawn = new Set(ids);
    // Rows that leave the range are reused for other jobs, except the one with the focus.
    const reusable = [...this.rows].filter(([id, row]) => !drawn.has(id) && !row.contains(document.activeElement)).map(([, row]) => row);
    const rows = new Map(ids.map((id) => [id, this.rows.get(id) ?? reusable.pop() ?? this.create()]));
    for (const [id, row] of rows) this.fill(row, id);
    this.rows = rows;
    setHeight(this.above, before * this.height);
    setHeight(this.below, after * this.height);
    const order = [this.above, ...rows.values(), this.below];
    const remaining = new Set(order);
    for (const child of [...this.body.children]) if (!remaining.has(child)) child.remove();
    // A row that is already in position is not moved, so that focus and hover stay.
    order.forEach((row, i) => { if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null); });
    this.visible(ids);
  }
}

function newSpacer(columns) {
  const row = document.createElement("tr");
  row.className = "spacer";
  row.setAttribute("aria-hidden", "true");
  row.appendChild(document.createElement("td")).colSpan = columns;
  return row;
}

function setHeight(row, height) {
  row.hidden = height <= 0;
  row.firstElementChild.style.height = `${Math.max(0, height)}px`;
}
