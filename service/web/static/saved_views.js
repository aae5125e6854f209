// Saved views of the table: a menu that opens them, and a dialog that saves what is shown.

import { call, callAll } from "./api.js";
import { EXAMPLES } from "./query_completion.js";
import { byId, make, maybeById, mayChange, onOpen, submitDialog, toast, toastError, visitor } from "./page.js";

/** @type {("where" | "sort" | "group")[]} */
const OF_THE_ORDER = ["where", "sort", "group"];
const OF_THE_VIEW = [...OF_THE_ORDER, "columns"];

export class SavedViews {
  /**
   * @param {() => URLSearchParams} address returns the parameters of the page.
   * @param {(parameters: URLSearchParams) => void} open shows a view.
   */
  constructor(address, open) {
    this.address = address;
    this.open = open;
    this.menu = byId("views", HTMLDetailsElement);
    const { menu } = this;
    onOpen(menu, () => {
      this.list().catch(toastError);
    });
    maybeById("save-view")?.addEventListener("click", () => this.save().catch(toastError));
  }

  async list() {
    const views = await callAll("/v1/views");
    const rows = views.map((/** @type {Api.ViewResource} */ view) =>
      make(
        "li",
        {},
        this.opener(
          view.name,
          view.created_by === visitor.name ? (view.shared ? "shared" : "") : view.created_by,
          view,
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
    const offered = EXAMPLES.map(({ text, note }) => make("li", {}, this.opener(note, "example", { where: text })));
    byId("view-list").replaceChildren(...rows, ...offered);
  }

  /**
   * A button that opens a view.
   *
   * @param {string} name
   * @param {string} note
   * @param {Partial<Api.ViewResource>} view
   */
  opener(name, note, view) {
    const onclick = () => this.show(view);
    return make("button", { type: "button", class: "quiet open", onclick }, name, make("small", { text: note }));
  }

  /** @param {Partial<Api.ViewResource>} view */
  show(view) {
    this.menu.open = false;
    const parameters = new URLSearchParams(view.page);
    for (const name of OF_THE_ORDER) if (view[name]) parameters.set(name, view[name] ?? "");
    for (const column of view.columns ?? []) parameters.append("columns", column);
    this.open(parameters);
  }

  async save() {
    this.menu.open = false;
    const name = byId("view-name", HTMLInputElement);
    name.value = "";
    let done = "";
    await submitDialog(byId("view-dialog", HTMLDialogElement), async () => {
      done = await this.send(name.value.trim());
    });
    if (done) toast(`${done} the view ${name.value.trim()}.`);
  }

  /**
   * Store the table's address under a name; what became of it.
   *
   * @param {string} name
   */
  async send(name) {
    const parameters = this.address();
    const page = new URLSearchParams(parameters);
    for (const one of [...OF_THE_VIEW, "job"]) page.delete(one);
    const view = {
      name,
      shared: byId("view-shared", HTMLInputElement).checked,
      project: byId("view-project", HTMLInputElement).value.trim() || null,
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

  /** @param {Api.ViewResource} view */
  async remove(view) {
    await call(`/v1/views/${view.id}`, { method: "DELETE" });
    await this.list();
  }
}
