// The page of tokens: creating one, whose secret is shown once, and revoking one.

import { urlOf } from "./address.js";
import { clearErrors, showError, showSecret } from "./admin_forms.js";
import { call } from "./api.js";
import { around, byId, confirmAction, toast, toastError, within } from "./page.js";

const form = byId("create", HTMLFormElement);

/** @param {string} name */
const input = (name) => within(form, `[name="${name}"]`, HTMLInputElement);
const role = within(form, '[name="role"]', HTMLSelectElement);

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearErrors(form);
  const [name, days, code] = [input("name"), input("expires_in_days"), input("may_run_code")];
  const body = /** @type {Api.TokenRequest} */ ({
    name: name.value.trim(),
    role: role.value,
    may_run_code: code.checked,
  });
  if (!body.name) {
    showError(form, { param: "name", message: "Enter a name: the user, or the purpose." });
    return;
  }
  if (days.value) body.expires_in_days = Number(days.value);
  try {
    const token = await call("/v1/tokens", { method: "POST", body });
    await showSecret(`The token of ${token.name}`, token.token);
    location.assign(urlOf("/admin"));
  } catch (error) {
    showError(form, error);
  }
});

role.addEventListener("change", () => {
  const isViewer = role.value === "viewer";
  byId("code").hidden = isViewer;
  if (isViewer) input("may_run_code").checked = false;
});

byId("tokens").addEventListener("click", async (event) => {
  const button = around(event, ".revoke");
  const row = button?.closest("tr");
  if (!button || !row) return;
  const text = row.dataset.own
    ? "You are signed in with this token and will be signed out."
    : "Requests with this token will fail at once. This cannot be undone.";
  if (!(await confirmAction(`Revoke this token of ${row.dataset.name}?`, text, "Revoke"))) return;
  try {
    await call(`/v1/tokens/${row.dataset.id}`, { method: "DELETE" });
    const chip = within(row, ".chip");
    chip.className = "chip off";
    chip.textContent = "revoked";
    button.remove();
    toast("Token revoked.");
    if (row.dataset.own) location.assign(urlOf("/sign-in"));
  } catch (error) {
    toastError(error);
  }
});
