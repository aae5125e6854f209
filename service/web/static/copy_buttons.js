// Buttons that copy text: `<button data-copy="id">` copies the text or the value of the element with that id.

import { around, byId, setText, toast } from "./page.js";

const CONFIRMATION_TIME = 2000; // milliseconds

document.addEventListener("click", async (event) => {
  const button = around(event, "[data-copy]");
  if (!button?.dataset.copy) return;
  if (!(await copy(byId(button.dataset.copy)))) return;
  button.dataset.label ??= button.textContent;
  setText(button, "Copied");
  setTimeout(() => setText(button, button.dataset.label ?? ""), CONFIRMATION_TIME);
});

/**
 * Copy an element's text. Without HTTPS there is no clipboard API; if `execCommand` fails, too, the text is selected.
 *
 * @param {HTMLElement} element
 */
async function copy(element) {
  try {
    await navigator.clipboard.writeText("value" in element ? String(element.value) : element.textContent);
    toast("Copied.");
    return true;
  } catch {
    select(element);
  }
  if (document.execCommand("copy")) {
    toast("Copied.");
    return true;
  }
  toast("The browser blocked copying. The text is selected: press Ctrl+C.", { bad: true });
  return false;
}

/** @param {HTMLElement} element */
function select(element) {
  if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement) {
    element.focus();
    element.select();
    return;
  }
  getSelection()?.selectAllChildren(element);
}
