// The rows of the table of jobs: one for each job, and one for each group of jobs.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { GROUP, groupText, groupTitle, isAveraged } from "./job_groups.js";
import { around, make, pageOf, setText, within } from "./page.js";
import { valueText } from "./table_columns.js";

export class TableRows {
  /** @param {RowsContext} context */
  constructor(context) {
    this.context = context;
    /** @type {Column[]} */
    this.columns = [];
    /** @type {Set<string>} */
    this.shown = new Set();
  }

  /**
   * Show these columns in rows that are made from now on.
   *
   * @param {Column[]} columns
   */
  use(columns) {
    this.columns = columns;
    this.shown = new Set(columns.map(({ name }) => name));
  }

  /** @param {string} id */
  kindOf(id) {
    return id.startsWith(GROUP) ? "group" : "job";
  }

  /** @param {string} id */
  create(id) {
    const isGroup = this.kindOf(id) === "group";
    const select = make("td", { class: "select" }, make("input", { type: "checkbox" }));
    const cells = this.columns.map((column) => {
      const cell = isGroup ? make("td") : column.cell();
      cell.classList.add(column.className, ...(column.right ? ["right"] : []));
      return cell;
    });
    return make("tr", { class: this.kindOf(id) }, select, ...cells);
  }

  /**
   * @param {HTMLElement} row
   * @param {string} id
   */
  fill(row, id) {
    row.dataset.id = id;
    if (this.kindOf(id) === "group") this.fillGroup(row, this.context.group(id));
    else this.fillJob(row, this.context.job(id));
  }

  /**
   * @param {HTMLElement} row
   * @param {Row | undefined} job
   */
  fillJob(row, job) {
    if (!job) return;
    const { selected, colour, note, sweep, curve } = this.context;
    const [select, ...cells] = cellsOf(row);
    const box = within(row, "input", HTMLInputElement);
    box.checked = selected.has(job.id);
    box.setAttribute("aria-label", `Select ${job.name}`);
    select.style.setProperty("--swatch", (selected.has(job.id) && colour(job.id)) || "transparent");
    const shown = { note: note(job.id) ?? "", sweep: sweep(job.sweep_id), curve: curve(job.id), shown: this.shown };
    this.columns.forEach((column, n) => column.fill(cells[n], job, shown));
  }

  /**
   * The fields and values of a group, such as `optimizer.lr 0.1, batch.size 64`.
   *
   * @param {ShownGroup} group
   * @param {(column: Column) => string} labelOf
   */
  groupTitle({ columns, values }, labelOf) {
    const textOf = (/** @type {any} */ value, /** @type {Column} */ { name }) =>
      value === null ? "none" : (name === "sweep" && this.context.sweep(value)) || valueText(value);
    return columns.map((column, n) => `${labelOf(column)} ${textOf(values[n], column)}`).join(", ");
  }

  /**
   * @param {HTMLElement} row
   * @param {ShownGroup | undefined} group
   */
  fillGroup(row, group) {
    if (!group) return;
    const [, ...cells] = cellsOf(row);
    const box = within(row, "input", HTMLInputElement);
    const chosen = group.jobs.filter((job) => this.context.selected.has(job.id)).length;
    box.checked = chosen === group.jobs.length;
    box.indeterminate = chosen > 0 && chosen < group.jobs.length;
    const title = this.groupTitle(group, ({ label }) => label);
    const short = group.columns.length > 1 ? this.groupTitle(group, ({ label }) => label.split(".").at(-1)) : title;
    const sweep = group.values[group.columns.findIndex(({ name }) => name === "sweep")];
    box.setAttribute(
      "aria-label",
      `Select the ${group.jobs.length === 1 ? "job" : `${group.jobs.length} jobs`} of ${title}`,
    );
    const place = Math.max(
      0,
      this.columns.findIndex(({ name }) => name === "name"),
    );
    this.columns.forEach((column, n) => {
      const cell = cells[n];
      if (n === place) {
        if (!cell.querySelector("button"))
          cell.replaceChildren(
            make("button", { type: "button", class: "quiet toggle-group" }),
            make("a", { text: "compare" }),
          );
        const [button, link] = [within(cell, "button"), within(cell, "a", HTMLAnchorElement)];
        button.setAttribute("aria-expanded", String(!group.closed));
        const size = `${group.jobs.length} ${group.jobs.length === 1 ? "job" : "jobs"}`;
        setText(button, `${short} · ${size}`);
        cell.title = `${title} · ${size}`;
        link.href = pageOf("sweep", sweep ?? null) ?? "";
        link.hidden = !link.getAttribute("href");
      } else {
        const values = group.jobs.map((job) => column.valueOf(job));
        setText(cell, groupText(values, column.format));
        cell.title = groupTitle(values, column.format);
        cell.classList.toggle("mean", isAveraged(values));
        if (column.isValue)
          cell.classList.toggle(
            "right",
            values.some((value) => typeof value === "number"),
          );
      }
      if (column.isValue) cell.dataset.label = column.name;
    });
  }
}

/** @param {HTMLElement} row */
const cellsOf = (row) => /** @type {HTMLElement[]} */ ([...row.children]);

/**
 * Open the job of a cell that describes it, unless text is being selected in it.
 *
 * @param {MouseEvent} event
 */
export function openJob(event) {
  const cell = around(event, "tr.job :is(.state, .name, .progress)");
  if (!cell || event.button > 1 || around(event, "a, button, input") || !getSelection()?.isCollapsed) return;
  const address = urlOf(`/jobs/${encodeURIComponent(cell.closest("tr")?.dataset.id ?? "")}`);
  if (event.button === 1 || event.ctrlKey || event.metaKey) window.open(address);
  else location.assign(address);
}
