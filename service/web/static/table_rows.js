// The rows of the table of jobs: one for each job, and one for each group of jobs.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { GROUP, groupText, groupTitle, isAveraged } from "./job_groups.js";
import { make, setText } from "./page.js";
import { valueText } from "./table_columns.js";

export class TableRows {
  /** `context` has `job(id)`, `group(id)`, `note(id)`, `sweep(id)` (its name), `curve(id)`, `selected` and `colour(id)`. */
  constructor(context) {
    Object.assign(this, { context, columns: [], shown: new Set() });
  }

  /** Show these columns in rows that are made from now on. */
  use(columns) {
    Object.assign(this, { columns, shown: new Set(columns.map(({ name }) => name)) });
  }

  kindOf(id) {
    return id.startsWith(GROUP) ? "group" : "job";
  }

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

  fill(row, id) {
    row.dataset.id = id;
    if (this.kindOf(id) === "group") this.fillGroup(row, this.context.group(id));
    else this.fillJob(row, this.context.job(id));
  }

  fillJob(row, job) {
    const { selected, colour, note, sweep, curve } = this.context;
    const [select, ...cells] = row.children;
    const box = select.firstElementChild;
    box.checked = selected.has(job.id);
    box.setAttribute("aria-label", `Select ${job.name}`);
    select.style.setProperty("--swatch", (selected.has(job.id) && colour(job.id)) || "transparent");
    const shown = { note: note(job.id) ?? "", sweep: sweep(job.sweep_id), curve: curve(job.id), shown: this.shown };
    this.columns.forEach((column, n) => column.fill(cells[n], job, shown));
  }

  /** The fields and values of a group, such as `optimizer.lr 0.1, batch.size 64`. */
  groupTitle({ columns, values }, labelOf) {
    const textOf = (value, { name }) =>
      value === null ? "none" : (name === "sweep" && this.context.sweep(value)) || valueText(value);
    return columns.map((column, n) => `${labelOf(column)} ${textOf(values[n], column)}`).join(", ");
  }

  fillGroup(row, group) {
    const [select, ...cells] = row.children;
    const box = select.firstElementChild;
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
        const [button, link] = cell.children;
        button.setAttribute("aria-expanded", String(!group.closed));
        const size = `${group.jobs.length} ${group.jobs.length === 1 ? "job" : "jobs"}`;
        setText(button, `${short} · ${size}`);
        cell.title = `${title} · ${size}`;
        link.hidden = !sweep;
        if (sweep) link.href = urlOf(`/compare${query({ sweep })}`);
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

/** Open the job of a cell that describes it, unless text is being selected in it. */
export function openJob(event) {
  const cell = event.target.closest("tr.job :is(.state, .name, .progress)");
  if (!cell || event.button > 1 || event.target.closest("a, button, input") || !getSelection().isCollapsed) return;
  const address = urlOf(`/jobs/${encodeURIComponent(cell.closest("tr").dataset.id)}`);
  if (event.button === 1 || event.ctrlKey || event.metaKey) window.open(address);
  else location.assign(address);
}
