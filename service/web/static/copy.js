// Buttons that copy what is beside them.

import { byId, say, setText } from "./page.js";

const SAID_FOR = 2000; // milliseconds

/** Every `<button data-copy="id">` copies the text of the element with that id, or the value of that field. */
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  if (!(await copied(byId(button.dataset.copy)))) return;
  button.dataset.word ??= button.textContent;
  setText(button, "Copied");
  setTimeout(() => setText(button, button.dataset.word), SAID_FOR);
});

/** Without https a browser has no clipboard for pages, and the older way is left; where that fails, the reader's keys. */
async function copied(element) {
  try {
    await navigator.clipboard.writeText(element.value ?? element.textContent);
    say("Copied.");
    return true;
  } catch {
    select(element);
  }
  if (document.execCommand("copy")) { say("Copied."); return true; }
  say("The browser blocked copying. The text is selected: press Ctrl+C.", { bad: true });
  return false;
}

function select(element) {
  if (element.select) { element.focus(); element.select(); return; }
  getSelection().selectAllChildren(element);
}
