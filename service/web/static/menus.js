// Menus in `<details class="menu">`: Escape and a click elsewhere close them.

import { around, within } from "./page.js";
const FOCUSABLE = "a, button, input, select, textarea, summary, [tabindex='0']"; // what a click moves the focus to

/**
 * Close a menu; the focus returns to its button.
 *
 * @param {HTMLDetailsElement} menu
 */
export function closeMenu(menu) {
  menu.open = false;
  within(menu, "summary").focus();
}

const openMenus = () => [...document.querySelectorAll("details.menu[open]")];

document.addEventListener("keydown", (event) => {
  const [menu] = openMenus();
  if (event.key !== "Escape" || !menu) return;
  event.preventDefault(); // a dialog around the menu stays open
  closeMenu(menu);
});

document.addEventListener("click", (event) => {
  for (const menu of openMenus()) {
    if (event.target instanceof Node && menu.contains(event.target)) continue;
    if (around(event, FOCUSABLE)) menu.open = false;
    else closeMenu(menu);
  }
});
