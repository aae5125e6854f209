// Helpers of every page: the embedded data, elements, toasts, dialogs, and times in the user's time zone.

import { urlOf } from "./address.js";
import { age, dateTime, timeZone } from "./format.js";

const embedded = JSON.parse(document.getElementById("page-data").textContent);

/** The signed-in user: name, role, csrf. */
export const visitor = embedded.visitor;
/** The answers of the API for the first view. */
export const data = embedded.data;

/** Whether the user may change the resources of `owner`. */
export const mayChange = (owner) => visitor.role === "admin" || (visitor.role === "user" && owner === visitor.name);

/** An element by its id. */
export const byId = (id) => document.getElementById(id);

/** A new element. `text` becomes a text node: no value is parsed as HTML. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A new SVG element. */
export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set an element's text only if it differs, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The parts of a message: text, links to the jobs whose ids it has, and what stands between backticks as code. */
export function parts(message) {
  const pieces = message.split("`");
  return pieces.length % 2
    ? pieces.flatMap((piece, n) => (n % 2 ? make("code", { text: piece }) : linked(piece)))
    : [message];
}

const linked = (text) =>
  text
    .split(/(job_[0-9a-z]{26})/)
    .map((piece, n) => (n % 2 ? make("a", { href: urlOf(`/jobs/${piece}`), text: piece }) : piece));

/** Set an element to a message with code only if it differs, as `setText` does. */
export function setMessage(element, message) {
  const nodes = parts(message);
  if (element.textContent !== nodes.map((node) => node.textContent ?? node).join("")) element.replaceChildren(...nodes);
}

/** Resolves after the next paint, for work that must not delay the first view. */
export const afterPaint = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

let toastTimer;

/** Show a message at the lower edge, which screen readers announce. `action`, `{ label, run }`, is a button beside it. */
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

/** Show the message of an error as a toast. */
export const toastError = (error) => toast(error.message, { bad: true });

/** Show the state of the live connection: "live", "lost", or "" once the stream has ended. */
export function showConnection(state) {
  const connection = byId("connection");
  connection.className = `connection ${state}`;
  setText(connection, { live: "Live", lost: "Offline" }[state] ?? "");
  const banner = byId("banner");
  banner.hidden = state !== "lost";
  setText(banner, state === "lost" ? "Connection lost. Showing the last known state; reconnecting…" : "");
}

/** Call an action when a server-rendered section opens, and now if it was opened before this script ran. */
export function onOpen(details, action) {
  details.addEventListener("toggle", () => {
    if (details.open) action();
  });
  if (details.open) action();
}

/**
 * Open a dialog; the value of the button that closed it, "no" for Escape and for a button of class "close". Enter in a
 * field presses the first button that submits, which in dialogs with fields is the one of "yes".
 */
export function openDialog(dialog) {
  dialog.returnValue = "no";
  for (const button of dialog.querySelectorAll("button.close")) button.onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/**
 * Open a dialog and call `send` for its "yes". An error of `send` is shown in the dialog, which stays open with its input.
 * @returns {Promise<boolean>} whether `send` succeeded.
 */
export async function submitDialog(dialog, send) {
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector(".problem") ?? make("p", { class: "problem", role: "alert" });
  dialog.querySelector(".buttons").before(problem);
  setText(problem, "");
  form.onsubmit = async (event) => {
    if (event.submitter?.value !== "yes") return;
    event.preventDefault();
    setText(problem, "");
    event.submitter.disabled = true;
    try {
      await send();
      dialog.close("yes");
    } catch (error) {
      if (dialog.open) setMessage(problem, error.message);
      else toastError(error);
    } finally {
      event.submitter.disabled = false;
    }
  };
  return (await openDialog(dialog)) === "yes";
}

/** Confirm an action in the page's dialog, with `verb` on the button that does it; true when confirmed. */
export async function confirmAction(title, text, verb = null) {
  const dialog = byId("confirm");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = text;
  if (verb) dialog.querySelector('[value="yes"]').textContent = verb;
  return (await openDialog(dialog)) === "yes";
}

/** Format every `<time>` below an element; `data-format` is "short", "exact" (with seconds) or "age". */
export function formatTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const iso = element.getAttribute("datetime");
    setText(element, element.dataset.format === "age" ? age(iso) : dateTime(iso, element.dataset.format));
    if (!element.title) element.title = dateTime(iso, "long");
  }
}

formatTimes();
for (const element of document.querySelectorAll(".time-zone"))
  setText(element, `Times of this page are in ${timeZone()}. Log lines have their own zone.`);
setInterval(formatTimes, 15_000);
