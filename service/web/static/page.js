// What every page's script needs: who looks, elements made of text, words said, and times in the reader's zone.

import { age, moment } from "./format.js";

const told = JSON.parse(document.getElementById("page").textContent);

/** Who is signed in: name, role, csrf. */
export const visitor = told.visitor;
/** What the server drew the page with. */
export const data = told.data;
/** Where Plotly's script is. */
export const plotlyUrl = told.plotly;

/** Whether the visitor may change what belongs to `owner`. */
export const mayChange = (owner) => visitor.role === "admin" || (visitor.role === "user" && owner === visitor.name);

/** An element by its id. */
export const byId = (id) => document.getElementById(id);

/** A new element. Text is text: nothing that is passed here is read as HTML. */
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

/** Text of an element, touched only where it differs, so that what is read aloud or selected stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let forgetting;

/** Say something at the lower edge, aloud to screen readers. */
export function say(text, { bad = false, seconds = bad ? 12 : 4 } = {}) {
  const place = byId("said");
  place.classList.toggle("bad", bad);
  place.textContent = text;
  clearTimeout(forgetting);
  forgetting = setTimeout(() => { place.textContent = ""; }, seconds * 1000);
}

/** The state of the live connection: "live", "lost" or "" (none wanted any more). */
export function showLink(state) {
  const link = byId("link");
  link.className = `link ${state}`;
  setText(link, { live: "Live", lost: "Offline" }[state] ?? "");
  const banner = byId("banner");
  banner.hidden = state !== "lost";
  setText(banner, state === "lost" ? "Connection lost. Showing the last known state; reconnecting…" : "");
}

/** Ask before something that cannot be undone, `yes` on the button that does it; true when confirmed. */
export function confirmed(dialog, question, about, yes = null) {
  dialog.querySelector("h2").textContent = question;
  dialog.querySelector("p").textContent = about;
  if (yes) dialog.querySelector('[value="yes"]').textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** Put every `<time>` below an element into the reader's zone; `data-as` is "age", or "exact" for seconds. */
export function localTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = element.getAttribute("datetime");
    setText(element, element.dataset.as === "age" ? age(at) : moment(at, element.dataset.as));
    if (!element.title) element.title = moment(at, "long");
  }
}

localTimes();
setInterval(localTimes, 15_000);
