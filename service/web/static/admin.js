// What the forms of administrators share: errors at their fields, and a secret that is shown once.

import "./copy.js";
import { byId, say } from "./page.js";

/** Say what is wrong at the field that it is about; elsewhere at the lower edge. */
export function complain(form, error) {
  const field = form?.elements[error.param];
  if (!field?.name) { say(error.message, { bad: true }); return; }
  field.setAttribute("aria-invalid", "true");
  byId(`wrong-${error.param}`).textContent = error.message;
  field.focus();
}

/** Take back what was said at the fields. */
export function forgive(form) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  for (const place of form.querySelectorAll(".problem")) place.textContent = "";
}

/** Show a secret until its reader says that they have it: Escape, pressed too early, would lose it. */
export function reveal(title, secret) {
  const dialog = byId("secret");
  const field = dialog.querySelector("input");
  byId("secret-title").textContent = title;
  field.value = secret;
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  field.select();
  return new Promise((resolve) => dialog.addEventListener("close", () => { field.value = ""; resolve(); }, { once: true }));
}
