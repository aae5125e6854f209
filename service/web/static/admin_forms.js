// Forms of administrators: errors at their fields, and a secret that is shown once.

import "./copy_buttons.js";
import { byId, toastError } from "./page.js";

/** Show an error at its field, or as a toast if it has none. */
export function showError(form, error) {
  const field = form?.elements[error.param];
  if (!field?.name) {
    toastError(error);
    return;
  }
  field.setAttribute("aria-invalid", "true");
  byId(`problem-${error.param}`).textContent = error.message;
  field.focus();
}

/** Remove the errors of a form. */
export function clearErrors(form) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  for (const element of form.querySelectorAll(".problem")) element.textContent = "";
}

/** Show a secret until the user confirms it; Escape does not close the dialog, since the secret would be lost. */
export function showSecret(title, secret) {
  const dialog = byId("secret");
  const field = dialog.querySelector("input");
  byId("secret-title").textContent = title;
  field.value = secret;
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  field.select();
  return new Promise((resolve) =>
    dialog.addEventListener(
      "close",
      () => {
        field.value = "";
        resolve();
      },
      { once: true },
    ),
  );
}
