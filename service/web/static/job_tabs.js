// The tabs of a job's page, and its log beside them. Both are in the address; the tab is remembered for other jobs.

import { store, stored } from "./browser_storage.js";
import { byId, maybeById } from "./page.js";

const KEY = "trainyard.job-tab"; // in the browser's storage
const DRAWER = "drawer"; // in the address: "log"
const OF_LOG = ["line", "grep", "level"]; // parameters of links that older versions made, which had no tab
const OF_CHARTS = ["find", "zoom", "section", "chart", "log_chart"];
/** @type {Record<string, (n: number, count: number) => number>} */
const MOVES = {
  ArrowLeft: (n, count) => (n + count - 1) % count,
  ArrowRight: (n, count) => (n + 1) % count,
  Home: () => 0,
  End: (_, count) => count - 1,
};

/**
 * The tab that a page opens at: the one in its address, else the overview of a failed job, else the one that was chosen last.
 * The overview is shown for a name that no tab has.
 *
 * @param {URLSearchParams} parameters
 * @param {string[]} names
 * @param {string} status
 * @param {string | null} remembered
 */
export function firstTab(parameters, names, status, remembered) {
  const named = parameters.get("tab") ?? "";
  if (names.includes(named)) return named;
  if (OF_LOG.some((one) => parameters.has(one))) return "log";
  if (OF_CHARTS.some((one) => parameters.has(one))) return "charts";
  if (named || status === "failed" || remembered === null || !names.includes(remembered)) return names[0];
  return remembered;
}

export class JobTabs {
  /** @param {Job} job */
  constructor(job) {
    this.panel = byId("panel");
    this.list = byId("tabs");
    this.buttons = [...this.list.querySelectorAll("button[role='tab']")];
    this.log = byId("log-card");
    this.toggle = byId("drawer-toggle");
    /** @type {((name: string) => void)[]} */
    this.listeners = [];
    const parameters = new URLSearchParams(location.search);
    const names = this.buttons.map((button) => button.dataset.tab ?? "");
    this.current = firstTab(parameters, names, job.status, stored(KEY));
    this.hasDrawer = parameters.get(DRAWER) === "log";
    const first = this.current; // its entry of the history may name no tab
    addEventListener("popstate", () => {
      const address = new URLSearchParams(location.search);
      this.hasDrawer = address.get(DRAWER) === "log";
      this.open(address.has("tab") ? firstTab(address, names, job.status, null) : first);
    });
    this.list.addEventListener("click", ({ target }) => {
      const name = target instanceof HTMLElement ? target.dataset.tab : undefined;
      if (name) this.select(name);
    });
    this.list.addEventListener("keydown", (event) => this.move(event));
    this.toggle.addEventListener("click", () => this.setDrawer(!this.hasDrawer));
    byId("drawer-close").addEventListener("click", () => this.setDrawer(false));
    maybeById("cause")?.addEventListener("click", () => this.select("overview"));
    this.show();
  }

  /**
   * Call back with the name of the current tab now, and with the name of each tab that is shown later.
   *
   * @param {(name: string) => void} listener
   */
  onShow(listener) {
    this.listeners.push(listener);
    listener(this.current);
  }

  /**
   * Show a tab, so that the browser's button *Back* returns to the one before.
   *
   * @param {string} name
   */
  select(name) {
    store(KEY, name);
    this.storeAddress("tab", name, name !== this.current);
    this.open(name);
  }

  /** @param {string} name */
  open(name) {
    const top = this.panel.getBoundingClientRect().top + scrollY - byId("job-bar").offsetHeight;
    this.current = name;
    this.show();
    if (scrollY > top) scrollTo(0, top);
    for (const listener of this.listeners) listener(name);
  }

  /** @param {KeyboardEvent} event */
  move(event) {
    const at = this.buttons.findIndex((button) => button === document.activeElement);
    const to = MOVES[event.key]?.(at, this.buttons.length);
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.select(this.buttons[to].dataset.tab ?? "");
    this.buttons[to].focus();
  }

  /** @param {boolean} isOpen */
  setDrawer(isOpen) {
    this.hasDrawer = isOpen;
    this.storeAddress(DRAWER, isOpen ? "log" : null);
    this.show();
    for (const listener of this.listeners) listener(this.current);
    (isOpen ? byId("log") : this.toggle).focus({ preventScroll: true });
  }

  show() {
    this.panel.dataset.tab = this.current;
    this.panel.setAttribute("aria-labelledby", `tab-${this.current}`);
    for (const button of this.buttons) {
      const isCurrent = button.dataset.tab === this.current;
      button.setAttribute("aria-selected", String(isCurrent));
      button.tabIndex = isCurrent ? 0 : -1;
      if (isCurrent) button.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    const isOpen = this.hasDrawer && this.current !== "log";
    document.body.classList.toggle("with-drawer", isOpen);
    this.log.classList.toggle("drawer", isOpen);
    byId("drawer-close").hidden = !isOpen;
    this.toggle.hidden = this.current === "log";
    this.toggle.setAttribute("aria-pressed", String(isOpen));
  }

  /**
   * @param {string} name
   * @param {string | null} value
   * @param {boolean} isNew whether the history gets an entry.
   */
  storeAddress(name, value, isNew = false) {
    const parameters = new URLSearchParams(location.search);
    if (value === null) parameters.delete(name);
    else parameters.set(name, value);
    if (isNew) history.pushState(null, "", `${location.pathname}?${parameters}`);
    else history.replaceState(null, "", `${location.pathname}${parameters.size ? `?${parameters}` : ""}`);
  }
}
