// Forms of administrators: errors at their fields, and a secret that is shown once.

import "./copy_buttons.js";
import { byId, toast, within } from "./page.js";

/**
 * Show an error at its field, or as a toast if it has none.
 *
 * @param {HTMLFormElement | null} form
 * @param {Problem} error
 */
export function showError(form, error) {
  const field = error.param ? form?.elements.namedItem(error.param) : null;
  if (!(field instanceof HTMLElement) || !field.getAttribute("name")) {
    toast(error.message, { bad: true });
    return;
  }
  field.setAttribute("aria-invalid", "true");
  byId(`problem-${error.param}`).textContent = error.message;
  field.focus();
}

/**
 * Remove the errors of a form.
 *
 * @param {HTMLFormElement} form
 */
export function clearErrors(form) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  for (const element of form.querySelectorAll(".problem")) element.textContent = "";
}

/**
 * Show a secret until the user confirms it; Escape does not close the dialog, since the secret would be lost.
 *
 * @param {string} title
 * @param {string} secret
 * @returns {Promise<void>}
 */
export function showSecret(title, secret) {
  const dialog = byId("secret", HTMLDialogElement);
  const field = within(dialog, "input", HTMLInputElement);
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
