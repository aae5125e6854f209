// Tokens: making one, whose secret is shown once, and revoking one.

import { complain, forgive, reveal } from "./admin.js";
import { call } from "./api.js";
import { byId, confirmed, say } from "./page.js";

const form = byId("new");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  forgive(form);
  const { name, role, expires_in_days: days, may_run_code: code } = form.elements;
  const body = { name: name.value.trim(), role: role.value, may_run_code: code.checked };
  if (!body.name) { complain(form, { param: "name", message: "Enter a name: the user, or the purpose." }); return; }
  if (days.value) body.expires_in_days = Number(days.value);
  try {
    const made = await call("/v1/tokens", { method: "POST", body });
    await reveal(`The token of ${made.name}`, made.token);
    location.assign("/admin");
  } catch (error) {
    complain(form, error);
  }
});

form.elements.role.addEventListener("change", () => {
  const looks = form.elements.role.value === "viewer";
  byId("code").hidden = looks;
  if (looks) form.elements.may_run_code.checked = false;
});

byId("tokens").addEventListener("click", async (event) => {
  const button = event.target.closest(".revoke");
  if (!button) return;
  const row = button.closest("tr");
  const about = row.dataset.own ? "You are signed in with this token and will be signed out." : "Requests with this token will fail at once. This cannot be undone.";
  if (!(await confirmed(byId("sure"), `Revoke this token of ${row.dataset.name}?`, about))) return;
  try {
    await call(`/v1/tokens/${row.dataset.id}`, { method: "DELETE" });
    const chip = row.querySelector(".chip");
    chip.className = "chip off";
    chip.textContent = "revoked";
    button.remove();
    say("Token revoked.");
    if (row.dataset.own) location.assign("/sign-in");
  } catch (error) {
    complain(null, error);
  }
});
