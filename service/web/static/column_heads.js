// The heads of the columns: sort, order, width, and a menu with all of it for the keyboard.

import { isBestDescending } from "./metric_direction.js";
import { around, byId, make, setText, within } from "./page.js";
import { clampWidth, groupKeys, moved, toggledGroup } from "./table_view.js";

const STEP = 40; // pixels by which the menu changes a width

export class ColumnHeads {
  /**
   * @param {HTMLElement} head
   * @param {HTMLElement} menu
   * @param {TableView} view
   * @param {ChangeTable} change is called with changed fields of the view.
   */
  constructor(head, menu, view, change) {
    this.head = head;
    this.menu = menu;
    this.view = view;
    this.change = change;
    /** @type {Column[]} */
    this.columns = [];
    /** @type {string | null} */
    this.dragged = null;
    this.all = make("input", { type: "checkbox", "aria-label": "Select all jobs of the table" });
    this.select = make(
      "th",
      { class: "select", scope: "col" },
      make("label", {}, this.all, make("span", { text: "Select all" })),
    );
    menu.addEventListener("click", (event) => this.act(around(event, "button")?.dataset.action));
    head.addEventListener("dragover", (event) => {
      if (this.dragged) event.preventDefault();
    });
    head.addEventListener("drop", (event) => this.drop(event));
  }

  /**
   * Show the heads of these columns.
   *
   * @param {Column[]} columns
   */
  show(columns) {
    this.columns = columns;
    this.head.replaceChildren(this.select, ...columns.map((column) => this.newHead(column)));
    this.showSort();
  }

  /** @param {Column} column */
  newHead(column) {
    const { name, label, sort, className, right, note = label } = column;
    const title = sort
      ? make("button", {
          type: "button",
          class: "sort",
          text: label,
          title: note,
          draggable: "true",
          onclick: () => this.sortBy(column),
        })
      : make("span", { text: label, draggable: "true" });
    title.addEventListener("dragstart", (/** @type {DragEvent} */ event) => {
      this.dragged = name;
      if (event.dataTransfer) event.dataTransfer.effectAllowed = "move";
    });
    title.addEventListener("dragend", () => {
      this.dragged = null;
    });
    const options = make("button", {
      type: "button",
      class: "options",
      "aria-label": `Options of ${label}`,
      "aria-haspopup": "true",
      text: "⋮",
      onclick: (event) => this.open(column, event.currentTarget),
    });
    const grip = make("span", {
      class: "grip",
      "aria-hidden": "true",
      onpointerdown: (event) => this.resize(event, column),
    });
    return make(
      "th",
      { class: `${className}${right ? " right" : ""}`, "data-column": name, "data-sort": sort, scope: "col" },
      make("div", { class: "head-cell" }, title, options),
      make("small", {
        class: "statistic",
        text: "mean ± SD",
        title: "Mean ± sample standard deviation of the jobs of each group",
        hidden: true,
      }),
      grip,
    );
  }

  /** Mark the column by which the table is sorted. */
  showSort() {
    const { sort } = this.view;
    for (const head of this.head.querySelectorAll("th[data-column]")) {
      const key = (head.dataset.sort ?? "").replace(/^-/, "");
      const own = sort || "-created";
      const isSorted = key && own.replace(/^-/, "") === key;
      // The age grows as the time of creation falls.
      const descending = own.startsWith("-");
      if (isSorted) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  /**
   * Sort by a column, or reverse its order. At first, the newest jobs and the best values of a metric come first.
   *
   * @param {Column} column
   * @param {boolean} [descending]
   */
  sortBy({ name, sort, isValue }, descending) {
    if (!sort) return;
    const key = sort.replace(/^-/, "");
    const now = this.view.sort || "-created";
    const isNumber = within(this.head, `th[data-column="${CSS.escape(name)}"]`).classList.contains("right");
    const first = sort.startsWith("-") || Boolean(isValue && isNumber && isBestDescending(key));
    const next = descending ?? (now.replace(/^-/, "") === key ? !now.startsWith("-") : first);
    const text = `${next ? "-" : ""}${key}`;
    this.change({ sort: text === "-created" ? "" : text });
  }

  /**
   * @param {Column} column
   * @param {HTMLElement} button
   */
  open(column, button) {
    /** @type {Column} */
    this.current = column;
    const { columns, fixed, group } = this.view;
    const position = columns.indexOf(column.name);
    const grouped = groupKeys(group);
    /** @type {Record<string, unknown>} */
    const shown = {
      ascending: column.sort,
      descending: column.sort,
      left: position > 0,
      right: position < columns.length - 1,
      group: column.name !== "progress" && column.name !== "age",
      fix: true,
      wider: true,
      narrower: true,
      hide: columns.length > 1,
    };
    for (const item of this.menu.querySelectorAll("button")) item.hidden = !shown[item.dataset.action ?? ""];
    setText(within(this.menu, '[data-action="fix"]'), fixed.includes(column.name) ? "Unpin" : "Pin");
    setText(
      within(this.menu, '[data-action="group"]'),
      grouped.includes(column.name) ? "Stop grouping by this" : grouped.length ? "Group by this too" : "Group by this",
    );
    this.menu.showPopover();
    const box = button.getBoundingClientRect();
    this.menu.style.left = `${Math.max(8, Math.min(box.left, innerWidth - this.menu.offsetWidth - 8))}px`;
    this.menu.style.top = `${box.bottom + 4}px`;
    within(this.menu, "button:not([hidden])").focus();
  }

  /** @param {string | undefined} action */
  act(action) {
    if (!action) return;
    const { columns, fixed, widths, group } = this.view;
    const { name } = this.current;
    const width = widths[name] ?? this.current.width;
    this.menu.hidePopover();
    /** @type {Record<string, () => void>} */
    const actions = {
      ascending: () => this.sortBy(this.current, false),
      descending: () => this.sortBy(this.current, true),
      left: () => this.change({ columns: moved(columns, name, -1) }),
      right: () => this.change({ columns: moved(columns, name, 1) }),
      wider: () => this.change({ widths: { ...widths, [name]: clampWidth(width + STEP) } }),
      narrower: () => this.change({ widths: { ...widths, [name]: clampWidth(width - STEP) } }),
      fix: () => this.change({ fixed: fixed.includes(name) ? fixed.filter((one) => one !== name) : [...fixed, name] }),
      group: () => this.change({ group: toggledGroup(group, name) }),
      hide: () =>
        this.change({ columns: columns.filter((one) => one !== name), fixed: fixed.filter((one) => one !== name) }),
    };
    actions[action]();
    this.head.querySelector(`th[data-column="${CSS.escape(name)}"] .options`)?.focus();
  }

  /** @param {DragEvent} event */
  drop(event) {
    const target = around(event, "th[data-column]")?.dataset.column;
    if (!this.dragged || !target || target === this.dragged) return;
    event.preventDefault();
    const { columns } = this.view;
    this.change({ columns: moved(columns, this.dragged, columns.indexOf(target) - columns.indexOf(this.dragged)) });
  }

  /**
   * @param {PointerEvent} event
   * @param {Column} column
   */
  resize(event, { name }) {
    event.preventDefault();
    const start = event.clientX;
    const width = around(event, "th")?.offsetWidth ?? 0;
    const move = (/** @type {PointerEvent} */ { clientX }) =>
      this.change({ widths: { ...this.view.widths, [name]: clampWidth(width + clientX - start) } }, { isResize: true });
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      this.change({ widths: this.view.widths });
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }
}

/**
 * The heads of the page's table.
 *
 * @param {TableView} view
 * @param {ChangeTable} change
 */
export const columnHeads = (view, change) => new ColumnHeads(byId("heads"), byId("column-menu"), view, change);
