// The pages of projects: creating, changing, and members.

import { urlOf } from "./address.js";
import { clearErrors, showError } from "./admin_forms.js";
import { call } from "./api.js";
import { bytes } from "./format.js";
import { around, confirmAction, data, maybeById, setText, toastError } from "./page.js";

const { project } = /** @type {{ project?: string }} */ (data);

/** @param {string} name */
const pathOf = (name) => `/projects/${encodeURIComponent(name)}`;

/** @param {string} [rest] */
const api = (rest = "") => `/v1${pathOf(project ?? "")}${rest}`;

/**
 * @param {HTMLFormElement} form
 * @param {string} name
 */
const textOf = (form, name) => String(new FormData(form).get(name) ?? "").trim();

/**
 * Send a form's request when it is submitted, and open a page.
 *
 * @param {string} id
 * @param {(form: HTMLFormElement) => Promise<string>} send returns the path of the page to open
 */
function onSubmit(id, send) {
  const form = maybeById(id);
  if (!(form instanceof HTMLFormElement)) return;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearErrors(form);
    try {
      location.assign(urlOf(await send(form)));
    } catch (error) {
      showError(form, error);
    }
  });
}

onSubmit("create", async (form) => {
  const name = textOf(form, "name");
  const body = { name, description: textOf(form, "description"), visibility: textOf(form, "visibility") };
  await call("/v1/projects", { method: "POST", body });
  return pathOf(name);
});

onSubmit("add", async (form) => {
  const name = encodeURIComponent(textOf(form, "member"));
  if (!name) throw { param: "member", message: "Enter the name of a user." };
  await call(api(`/members/${name}`), { method: "PUT", body: { role: textOf(form, "role") } });
  return pathOf(project ?? "");
});

onSubmit("change", async (form) => {
  /** @type {Record<string, string | number | null>} */
  const body = { description: textOf(form, "description"), visibility: textOf(form, "visibility") };
  for (const limit of ["max_gpus", "max_queued"]) {
    if (form.elements.namedItem(limit)) body[limit] = textOf(form, limit) ? Number(textOf(form, limit)) : null;
  }
  await call(api(), { method: "PATCH", body });
  return pathOf(project ?? "");
});

maybeById("members")?.addEventListener("change", async (event) => {
  const select = event.target;
  const member = select instanceof HTMLSelectElement && select.closest("tr")?.dataset.member;
  if (!member) return;
  try {
    await call(api(`/members/${encodeURIComponent(member)}`), { method: "PUT", body: { role: select.value } });
  } catch (error) {
    toastError(error);
  }
  location.reload();
});

maybeById("members")?.addEventListener("click", async (event) => {
  const row = around(event, ".remove")?.closest("tr");
  const member = row?.dataset.member;
  if (!row || !member) return;
  const text = "Their jobs stay in the project. In a private project they no longer read them.";
  if (!(await confirmAction(`Remove ${member} from ${project}?`, text, "Remove"))) return;
  try {
    await call(api(`/members/${encodeURIComponent(member)}`), { method: "DELETE" });
    row.remove();
  } catch (error) {
    toastError(error);
  }
});

maybeById("delete")?.addEventListener("click", async () => {
  const text = "Its jobs stay, and everybody can use and read its name as a label.";
  if (!(await confirmAction(`Delete the project ${project}?`, text, "Delete"))) return;
  try {
    await call(api(), { method: "DELETE" });
    location.assign(urlOf("/projects"));
  } catch (error) {
    toastError(error);
  }
});

const disk = maybeById("disk");
if (disk) setText(disk, bytes(Number(disk.dataset.bytes)));
