// The rows of the table of jobs: one for each job, and one for each group of jobs.

import { GROUP, groupText } from "./job_groups.js";
import { make, setText } from "./page.js";
import { valueText } from "./table_columns.js";

export class TableRows {
  /** `context` has `job(id)`, `group(id)`, `note(id)`, `curve(id)`, `selected` and `colour(id)`. */
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
    const { selected, colour, note, curve } = this.context;
    const [select, ...cells] = row.children;
    const box = select.firstElementChild;
    box.checked = selected.has(job.id);
    box.setAttribute("aria-label", `Select ${job.name}`);
    select.style.setProperty("--swatch", (selected.has(job.id) && colour(job.id)) || "transparent");
    const shown = { note: note(job.id) ?? "", curve: curve(job.id), shown: this.shown };
    this.columns.forEach((column, n) => column.fill(cells[n], job, shown));
  }

  fillGroup(row, group) {
    const [select, ...cells] = row.children;
    const box = select.firstElementChild;
    const chosen = group.jobs.filter((job) => this.context.selected.has(job.id)).length;
    box.checked = chosen === group.jobs.length;
    box.indeterminate = chosen > 0 && chosen < group.jobs.length;
    const title = group.value === null ? "none" : valueText(group.value);
    box.setAttribute("aria-label", `Select the ${group.jobs.length} jobs of ${group.label} ${title}`);
    const place = Math.max(0, this.columns.findIndex(({ name }) => name === "name"));
    this.columns.forEach((column, n) => {
      const cell = cells[n];
      if (n === place) {
        if (!cell.querySelector("button")) cell.replaceChildren(make("button", { type: "button", class: "quiet toggle-group" }));
        const button = cell.firstElementChild;
        button.setAttribute("aria-expanded", String(!group.closed));
        setText(button, `${group.label} ${title} · ${group.jobs.length}`);
        cell.title = button.textContent;
      } else {
        const values = group.jobs.map((job) => column.valueOf(job));
        setText(cell, groupText(values, column.format));
        if (column.isValue) cell.classList.toggle("right", values.some((value) => typeof value === "number"));
      }
      if (column.isValue) cell.dataset.label = column.name;
    });
  }
}
