// Saved views of the table: a menu that opens them, and a dialog that saves what is shown.

import { call, callAll } from "./api.js";
import { byId, make, mayChange, onOpen, submitDialog, toast, toastError, visitor } from "./page.js";

const OF_THE_VIEW = ["where", "sort", "columns", "group"];

export class SavedViews {
  /** `address()` returns the parameters of the page; `open(parameters)` shows a view. */
  constructor(address, open) {
    Object.assign(this, { address, open });
    const menu = byId("views");
    onOpen(menu, () => {
      this.list().catch(toastError);
    });
    document.addEventListener("pointerdown", (event) => {
      if (menu.open && !menu.contains(event.target)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    });
    byId("save-view")?.addEventListener("click", () => this.save().catch(toastError));
  }

  async list() {
    this.views = await callAll("/v1/views");
    const rows = this.views.map((view) =>
      make(
        "li",
        {},
        make(
          "button",
          { type: "button", class: "quiet open", onclick: () => this.show(view) },
          view.name,
          make("small", { text: view.created_by === visitor.name ? (view.shared ? "shared" : "") : view.created_by }),
        ),
        mayChange(view.created_by)
          ? make("button", {
              type: "button",
              class: "quiet",
              "aria-label": `Delete the view ${view.name}`,
              text: "×",
              onclick: () => this.remove(view).catch(toastError),
            })
          : null,
      ),
    );
    byId("view-list").replaceChildren(
      ...(rows.length ? rows : [make("li", { class: "hint", text: "No saved views yet." })]),
    );
  }

  show(view) {
    byId("views").open = false;
    const parameters = new URLSearchParams(view.page);
    for (const name of ["where", "sort", "group"]) if (view[name]) parameters.set(name, view[name]);
    for (const column of view.columns) parameters.append("columns", column);
    this.open(parameters);
  }

  async save() {
    byId("views").open = false;
    const name = byId("view-name");
    name.value = "";
    let done = "";
    await submitDialog(byId("view-dialog"), async () => {
      done = await this.send(name.value.trim());
    });
    if (done) toast(`${done} the view ${name.value.trim()}.`);
  }

  /** Store the table's address under a name; what became of it. */
  async send(name) {
    const parameters = this.address();
    const page = new URLSearchParams(parameters);
    for (const one of [...OF_THE_VIEW, "job"]) page.delete(one);
    const view = {
      name,
      shared: byId("view-shared").checked,
      page: page.toString(),
      columns: parameters.getAll("columns"),
      where: parameters.get("where") ?? "",
      sort: parameters.get("sort") ?? "",
      group: parameters.get("group") ?? "",
    };
    const present = (await callAll("/v1/views")).find((one) => one.name === name && one.created_by === visitor.name);
    await (present
      ? call(`/v1/views/${present.id}`, { method: "PUT", body: view })
      : call("/v1/views", { method: "POST", body: view }));
    return present ? "Replaced" : "Saved";
  }

  async remove(view) {
    await call(`/v1/views/${view.id}`, { method: "DELETE" });
    await this.list();
  }
}
