// Helpers of every page: the embedded data, elements, toasts, dialogs, and times in the user's time zone.

import { urlOf } from "./address.js";
import { age, dateTime, timeZone } from "./format.js";

/**
 * The element with an id. Throws an Error if there is none of this class.
 *
 * @template {Element} [T=HTMLElement]
 * @param {string} id
 * @param {ClassOf<T>} [type]
 * @returns {T}
 */
export const byId = (id, type) => checked(document.getElementById(id), `#${id}`, type);

/**
 * The first element below `root` that matches a selector. Throws an Error if there is none of this class.
 *
 * @template {Element} [T=HTMLElement]
 * @param {ParentNode} root
 * @param {string} selector
 * @param {ClassOf<T>} [type]
 * @returns {T}
 */
export const within = (root, selector, type) => checked(root.querySelector(selector), selector, type);

/**
 * @template {Element} T
 * @param {Element | null} element
 * @param {string} name
 * @param {ClassOf<any>} type
 * @returns {T}
 */
function checked(element, name, type = HTMLElement) {
  if (element instanceof type) return /** @type {any} */ (element);
  throw new Error(`The page has no ${type.name} ${name}.`);
}

/**
 * The element with an id, or null: the page of some visitors lacks it.
 *
 * @template {Element} [T=HTMLElement]
 * @param {string} id
 * @param {ClassOf<T>} [type]
 * @returns {T | null}
 */
export const maybeById = (id, type) => (document.getElementById(id) ? byId(id, type) : null);

/**
 * The element at or around an event's target that matches a selector, or null.
 *
 * @template {string} S
 * @param {Event} event
 * @param {S} selector
 */
export const around = ({ target }, selector) => (target instanceof Element ? target.closest(selector) : null);

const embedded = JSON.parse(byId("page-data", HTMLScriptElement).text);

/**
 * The signed-in user.
 *
 * @type {{ name: string, role: string, csrf: string }}
 */
export const visitor = embedded.visitor;
/**
 * The answers of the API for the first view.
 *
 * @type {any}
 */
export const data = embedded.data;

/**
 * The keyboard shortcuts of plugins: a key, the page that it opens, and what the list of shortcuts calls it.
 *
 * @type {[string, string, string][]}
 */
export const shortcuts = embedded.shortcuts;

/**
 * The address of the page about a resource; undefined where the service has no such pages.
 *
 * @param {string} kind
 * @param {string | null} id
 * @returns {string | undefined}
 */
export const pageOf = (kind, id) =>
  id !== null && kind in embedded.pages
    ? urlOf(embedded.pages[kind].replace("{id}", encodeURIComponent(id)))
    : undefined;

/**
 * Whether the user may change the resources of `owner`.
 *
 * @param {string} owner
 */
export const mayChange = (owner) => visitor.role === "admin" || (visitor.role === "user" && owner === visitor.name);

/**
 * A new element. `text` becomes a text node: no value is parsed as HTML.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties} properties
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = String(value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * A new SVG element.
 *
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * Set an element's text only if it differs, so that screen readers and selections are not disturbed.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * The parts of a message: text, links to the jobs whose ids it has, and what stands between backticks as code.
 *
 * @param {string} message
 * @returns {(Node | string)[]}
 */
export function parts(message) {
  const pieces = message.split("`");
  return pieces.length % 2
    ? pieces.flatMap((piece, n) => (n % 2 ? make("code", { text: piece }) : linked(piece)))
    : [message];
}

/**
 * @param {string} text
 * @returns {(Node | string)[]}
 */
const linked = (text) =>
  text
    .split(/(job_[0-9a-z]{26})/)
    .map((piece, n) => (n % 2 ? make("a", { href: urlOf(`/jobs/${piece}`), text: piece }) : piece));

/**
 * Set an element to a message with code only if it differs, as `setText` does.
 *
 * @param {Element} element
 * @param {string} message
 */
export function setMessage(element, message) {
  const nodes = parts(message);
  if (element.textContent !== nodes.map((node) => (typeof node === "string" ? node : node.textContent)).join(""))
    element.replaceChildren(...nodes);
}

/** Resolves after the next paint, for work that must not delay the first view. */
export const afterPaint = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** @type {number | undefined} */
let toastTimer;

/**
 * Show a message at the lower edge, which screen readers announce. `action`, `{ label, run }`, is a button beside it.
 *
 * @param {string} text
 * @param {{ bad?: boolean, action?: { label: string, run: () => unknown } | null }} [options]
 */
export function toast(text, { bad = false, action = null } = {}) {
  const element = byId("toast");
  element.classList.toggle("bad", bad);
  setMessage(element, text);
  const close = () => {
    element.textContent = "";
  };
  if (action)
    element.append(
      " ",
      make("button", {
        type: "button",
        text: action.label,
        onclick: () => {
          close();
          action.run();
        },
      }),
    );
  clearTimeout(toastTimer);
  toastTimer = setTimeout(close, action ? 20_000 : bad ? 12_000 : 4_000);
}

/**
 * Show the message of an error as a toast.
 *
 * @param {Error} error
 */
export const toastError = (error) => toast(error.message, { bad: true });

/**
 * Show the state of the live connection: "live", "lost", or "" once the stream has ended.
 *
 * @param {"live" | "lost" | ""} state
 */
export function showConnection(state) {
  const connection = byId("connection");
  connection.className = `connection ${state}`;
  setText(connection, { live: "Live", lost: "Offline", "": "" }[state]);
  const banner = byId("banner");
  banner.hidden = state !== "lost";
  setText(banner, state === "lost" ? "Connection lost. Showing the last known state; reconnecting…" : "");
}

/**
 * Call an action when a server-rendered section opens, and now if it was opened before this script ran.
 *
 * @param {HTMLDetailsElement} details
 * @param {() => unknown} action
 */
export function onOpen(details, action) {
  details.addEventListener("toggle", () => {
    if (details.open) action();
  });
  if (details.open) action();
}

/**
 * Open a dialog; the value of the button that closed it, "no" for Escape and for a button of class "close". Enter in a
 * field presses the first button that submits, which in dialogs with fields is the one of "yes".
 *
 * @param {HTMLDialogElement} dialog
 * @returns {Promise<string>}
 */
export function openDialog(dialog) {
  dialog.returnValue = "no";
  for (const button of dialog.querySelectorAll("button.close")) button.onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/**
 * Open a dialog and call `send` for its "yes". An error of `send` is shown in the dialog, which stays open with its input.
 * @param {HTMLDialogElement} dialog
 * @param {() => unknown} send
 * @returns {Promise<boolean>} whether `send` succeeded.
 */
export async function submitDialog(dialog, send) {
  const form = within(dialog, "form", HTMLFormElement);
  const problem = dialog.querySelector(".problem") ?? make("p", { class: "problem", role: "alert" });
  within(dialog, ".buttons").before(problem);
  setText(problem, "");
  form.onsubmit = async (event) => {
    const { submitter } = event;
    if (!(submitter instanceof HTMLButtonElement) || submitter.value !== "yes") return;
    event.preventDefault();
    setText(problem, "");
    submitter.disabled = true;
    try {
      await send();
      dialog.close("yes");
    } catch (error) {
      if (dialog.open) setMessage(problem, error.message);
      else toastError(error);
    } finally {
      submitter.disabled = false;
    }
  };
  return (await openDialog(dialog)) === "yes";
}

/**
 * Confirm an action in a dialog, with `verb` on the button that does it, and `back` on the other; true when confirmed.
 *
 * @param {string} title
 * @param {string} text
 * @param {string} verb
 * @param {string} back
 */
export async function confirmAction(title, text, verb, back = "Back") {
  const dialog = byId("confirm", HTMLDialogElement);
  within(dialog, "h2").textContent = title;
  within(dialog, "p").textContent = text;
  within(dialog, '[value="yes"]').textContent = verb;
  within(dialog, '[value="no"]').textContent = back;
  return (await openDialog(dialog)) === "yes";
}

/**
 * Format every `<time>` below an element; `data-format` is "short", "exact" (with seconds) or "age".
 *
 * @param {ParentNode} root
 */
export function formatTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const iso = element.dateTime;
    setText(element, element.dataset.format === "age" ? age(iso) : dateTime(iso, element.dataset.format));
    if (!element.title) element.title = dateTime(iso, "long");
  }
}

formatTimes();
for (const element of document.querySelectorAll(".time-zone"))
  setText(element, `Times of this page are in ${timeZone()}. Log lines have their own zone.`);
setInterval(formatTimes, 15_000);
