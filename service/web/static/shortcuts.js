// Keyboard shortcuts of all pages, and the dialog that lists them and turns them off.

import { urlOf } from "./address.js";
import { store, stored } from "./browser_storage.js";
import { showTableLink, tableAddress } from "./last_table.js";
import { closeMenu } from "./menus.js";
import { around, byId, make, maybeById, openDialog, shortcuts, within } from "./page.js";

const KEY = "trainyard.shortcuts"; // in the browser's storage: "off", or nothing
const PAUSE = 1500; // milliseconds between the two keys of `g j`
/** @type {Record<string, () => string>} */
const PAGES = {
  j: tableAddress,
  ...Object.fromEntries(shortcuts.map(([key, path]) => [key, () => urlOf(path)])),
  c: () => urlOf("/compare"),
  h: () => urlOf("/help"),
};
const LIST = [
  ["?", "Show this list"],
  ["/", "Search or filter the page"],
  ["g j", "Go to the jobs"],
  ...shortcuts.map(([key, , label]) => [`g ${key}`, label]),
  ["g c", "Go to the comparison of runs"],
  ["g h", "Go to the help"],
  ["n", "New job"],
  ["l", "Show or close the log on the page of a job"],
  ["j", "Next row of the table of jobs"],
  ["k", "Previous row"],
  ["Enter", "Open the job of the row"],
];
const TEXT_INPUTS =
  'input:not([type="checkbox"], [type="radio"], [type="button"], [type="range"]), textarea, select, [contenteditable]:not([contenteditable="false"])';

let prefixed = -Infinity; // when `g` was pressed

const areOn = () => stored(KEY) !== "off";
/** @param {boolean} on */
const turn = (on) => store(KEY, on ? null : "off");

/**
 * Whether a key is typed into a field, belongs to the browser, or is for an open dialog.
 *
 * @param {KeyboardEvent} event
 */
function isTaken(event) {
  return (
    event.defaultPrevented ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.isComposing ||
    around(event, TEXT_INPUTS) ||
    document.querySelector("dialog[open]")
  );
}

/**
 * Do what a key stands for; false if it stands for nothing.
 *
 * @param {string} key
 */
function act(key) {
  const isSecond = performance.now() - prefixed < PAUSE;
  prefixed = -Infinity;
  if (isSecond && PAGES[key]) location.assign(PAGES[key]());
  else if (key === "?") showList();
  else if (key === "/") return focusSearch();
  else if (key === "g") prefixed = performance.now();
  else if (key === "n") location.assign(urlOf("/submit"));
  else if (key === "l") return toggleLog();
  else if (key === "j" || key === "k") return moveRow(key === "j" ? 1 : -1);
  else return key === "Enter" && openRow();
  return true;
}

function toggleLog() {
  const toggle = maybeById("drawer-toggle");
  toggle?.click();
  return toggle !== null;
}

function focusSearch() {
  const fields = [...document.querySelectorAll('main [data-find], main input[type="search"]')];
  const field = fields.find((one) => one.checkVisibility());
  field?.focus();
  if (field instanceof HTMLInputElement) field.select();
  return Boolean(field);
}

/**
 * Focus the link of the next or previous row of the table of jobs; at first, of the first row in sight.
 *
 * @param {number} by
 */
function moveRow(by) {
  const rows = [...document.querySelectorAll("#rows tr.job")];
  const current = rows.findIndex((row) => row.contains(document.activeElement));
  const top = maybeById("heads")?.getBoundingClientRect().bottom ?? 0;
  const row = current < 0 ? rows.find((one) => one.getBoundingClientRect().top >= top - 1) : rows[current + by];
  if (!row) return rows.length > 0;
  (row.querySelector("a") ?? within(row, "input")).focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
  return true;
}

/** Open the job of the row with the focus. A focused link or button does what it does. */
function openRow() {
  const row = document.activeElement?.closest("#rows tr.job");
  if (!row?.dataset.id || document.activeElement?.matches("a, button")) return false;
  location.assign(urlOf(`/jobs/${encodeURIComponent(row.dataset.id)}`));
  return true;
}

function makeDialog() {
  const toggle = make("input", { type: "checkbox", id: "shortcuts-on", onchange: () => turn(toggle.checked) });
  const keys = (/** @type {string} */ text) => text.split(" ").map((one) => make("kbd", { text: one }));
  const dialog = make(
    "dialog",
    { id: "shortcuts", "aria-labelledby": "shortcuts-title" },
    make(
      "form",
      { method: "dialog" },
      make("h2", { id: "shortcuts-title", text: "Keyboard shortcuts" }),
      make(
        "dl",
        { class: "shortcuts" },
        ...LIST.map(([text, what]) => make("div", {}, make("dt", {}, ...keys(text)), make("dd", { text: what }))),
      ),
      make("p", {}, make("label", { class: "toggle" }, toggle, "Use keyboard shortcuts")),
      make("div", { class: "buttons" }, make("button", { value: "no", class: "primary", text: "Close" })),
    ),
  );
  document.body.append(dialog);
  return dialog;
}

function showList() {
  const dialog = maybeById("shortcuts", HTMLDialogElement) ?? makeDialog();
  byId("shortcuts-on", HTMLInputElement).checked = areOn();
  openDialog(dialog);
}

document.addEventListener("keydown", (event) => {
  if (!isTaken(event) && areOn() && act(event.key)) event.preventDefault();
});
byId("show-shortcuts").addEventListener("click", () => {
  closeMenu(byId("account", HTMLDetailsElement)); // Escape is for the dialog
  showList();
});
showTableLink();
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
