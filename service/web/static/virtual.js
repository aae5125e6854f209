// Rows of one height in a table body: only those in sight are in the document, with room above and below for the rest.

const BEYOND = 12; // rows kept on either side of what is in sight

export class VirtualRows {
  /** `create()` makes an empty row and `fill(row, id)` fills it; `seen(ids)` tells which are there, `nearEnd()` that the last one is near. */
  constructor(body, { columns, create, fill, seen, nearEnd }) {
    Object.assign(this, { body, create, fill, seen, nearEnd });
    this.ids = [];
    this.rows = new Map();
    this.above = space(columns);
    this.below = space(columns);
    this.window = [-1, -1];
    this.measure();
    addEventListener("scroll", () => this.schedule(), { passive: true });
    addEventListener("resize", () => { this.measure(); this.window = [-1, -1]; this.schedule(); });
  }

  /** These rows, in this order. */
  show(ids) {
    this.ids = ids;
    this.window = [-1, -1];
    this.draw();
  }

  /** Fill again what is there of one row, or of all. */
  refresh(id) {
    if (id === undefined) for (const [one, row] of this.rows) this.fill(row, one);
    else if (this.rows.has(id)) this.fill(this.rows.get(id), id);
  }

  schedule() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = undefined; this.draw(); });
  }

  measure() {
    this.height = parseFloat(getComputedStyle(this.body.parentElement).getPropertyValue("--row"));
  }

  draw() {
    const top = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / this.height) - BEYOND);
    const last = Math.min(this.ids.length, Math.ceil((top + innerHeight) / this.height) + BEYOND);
    if (last > this.ids.length - BEYOND * 3) this.nearEnd();
    if (first === this.window[0] && last === this.window[1]) return;
    this.window = [first, last];
    this.place(this.ids.slice(first, last), first, this.ids.length - Math.max(first, last));
  }

  place(ids, before, after) {
    const wanted = new Set(ids);
    // A row that went out of sight shows another job; the one that holds the focus is not taken.
    const spare = [...this.rows].filter(([id, row]) => !wanted.has(id) && !row.contains(document.activeElement)).map(([, row]) => row);
    const rows = new Map(ids.map((id) => [id, this.rows.get(id) ?? spare.pop() ?? this.create()]));
    for (const [id, row] of rows) this.fill(row, id);
    this.rows = rows;
    setHeight(this.above, before * this.height);
    setHeight(this.below, after * this.height);
    const order = [this.above, ...rows.values(), this.below];
    const kept = new Set(order);
    for (const child of [...this.body.children]) if (!kept.has(child)) child.remove();
    // What keeps its place is not moved, so that focus and hover stay.
    order.forEach((row, i) => { if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null); });
    this.seen(ids);
  }
}

function space(columns) {
  const row = document.createElement("tr");
  row.className = "space";
  row.setAttribute("aria-hidden", "true");
  const cell = row.appendChild(document.createElement("td"));
  cell.colSpan = columns;
  return row;
}

function setHeight(row, height) {
  row.hidden = height <= 0;
  row.firstElementChild.style.height = `${Math.max(0, height)}px`;
}
