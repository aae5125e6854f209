// What the program logged beside numbers, such as images: a panel for each key, with a slider over its steps. A panel reads its
// items when it is first in view, and a file when it is shown.

import { call, callAll } from "./api.js";
import { matcher } from "./chart_view.js";
import { count } from "./format.js";
import { mediaView, stepOf } from "./media_view.js";
import { byId, make, setText } from "./page.js";

const PANELS = matchMedia("(max-width: 720px)").matches ? 3 : 6; // that are added at a time
const SHOWN = 16; // items of one step
const TALL = new Set(["image", "histogram", "table"]); // types whose panels have a fixed height, so that nothing moves
const STEP = "step"; // in the address

/** The panels of a job's media; the section is hidden until there are some. */
export class JobMedia {
  /** @param {string} jobId */
  constructor(jobId) {
    this.root = `/v1/jobs/${jobId}`;
    /** @type {Map<string, Panel>} */
    this.panels = new Map(); // by key
    this.limit = PANELS;
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries)
          if (isIntersecting) {
            this.seen.unobserve(target);
            if (target instanceof HTMLElement) this.panels.get(target.dataset.key ?? "")?.read();
          }
      },
      { rootMargin: "200px" },
    );
    byId("media-more").addEventListener("click", () => {
      this.limit += PANELS;
      this.add();
    });
    const search = byId("media-search", HTMLInputElement);
    search.addEventListener("input", () => this.add());
    byId("media-goto").addEventListener("submit", (event) => {
      event.preventDefault();
      this.goTo(byId("media-step", HTMLInputElement));
    });
    byId("media-step").addEventListener("change", ({ target }) => {
      if (target instanceof HTMLInputElement) this.goTo(target);
    });
    /** @type {Api.MediaKeyResource[]} */
    this.keys = [];
    this.wanted = stepOf(new URLSearchParams(location.search).get(STEP) ?? "");
    byId("media-step", HTMLInputElement).value = this.wanted === null ? "" : String(this.wanted);
  }

  /**
   * Show the items of the step in a field, or those before it; the newest without one. The step is in the address.
   *
   * @param {HTMLInputElement} field
   */
  goTo(field) {
    this.wanted = stepOf(field.value);
    field.setAttribute("aria-invalid", String(this.wanted === null && field.value.trim() !== ""));
    const parameters = new URLSearchParams(location.search);
    if (this.wanted === null) parameters.delete(STEP);
    else parameters.set(STEP, String(this.wanted));
    history.replaceState(null, "", `${location.pathname}${parameters.size ? `?${parameters}` : ""}`);
    for (const panel of this.panels.values()) panel.goTo(this.wanted);
  }

  /** Put the panels beside the curves if there are some. Not while the page is read: the curves would move. */
  layOut() {
    if (this.keys.length) byId("workspace").classList.add("with-media");
  }

  /** Read which keys there are, and the items of those that have more. */
  async load() {
    this.keys = (await call(`${this.root}/media/keys`)).data;
    this.keys.sort((one, other) => Number(other.type === "image") - Number(one.type === "image"));
    byId("media").hidden = !this.keys.length;
    byId("no-media").hidden = this.keys.length > 0;
    byId("media-search").hidden = this.keys.length <= PANELS;
    this.add();
  }

  /** Show the first panels of the keys that match the search. */
  add() {
    const matches = matcher(byId("media-search", HTMLInputElement).value);
    const keys = this.keys.filter(({ key }) => matches(key));
    const shown = keys.slice(0, this.limit).map((one) => this.panel(one));
    for (const { element } of this.panels.values()) element.hidden = true;
    for (const { element } of shown) element.hidden = false;
    byId("media-more").hidden = keys.length <= this.limit;
  }

  /** @param {Api.MediaKeyResource} one */
  panel(one) {
    const known = this.panels.get(one.key);
    known?.update(one);
    if (known) return known;
    const panel = new Panel(this.root, one, this.wanted);
    this.panels.set(one.key, panel);
    byId("media-panels").append(panel.element);
    this.seen.observe(panel.element);
    return panel;
  }
}

class Panel {
  /**
   * @param {string} root
   * @param {Api.MediaKeyResource} known
   * @param {number | null} wanted is the step that is shown; null is the newest.
   */
  constructor(root, known, wanted) {
    this.wanted = wanted;
    this.root = root;
    this.known = known;
    /** @type {[number, Api.MediaResource[]][]} */
    this.steps = [];
    this.range = make("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      "aria-label": `Step of ${known.key}`,
    });
    this.step = make("output", {});
    this.content = make("div", { class: "preview" });
    const bar = make("p", { class: "toolbar" }, this.range, this.step);
    this.element = make(
      "section",
      { class: `card media${TALL.has(known.type) ? " tall" : ""}`, "aria-label": known.key },
      make("h3", { class: "mono", text: known.key }),
      bar,
      this.content,
    );
    this.element.dataset.key = known.key;
    this.range.addEventListener("input", () => {
      this.wanted = null;
      this.label();
      clearTimeout(this.timer);
      /** @type {number | undefined} */
      this.timer = setTimeout(() => this.show(), 80); // one read for a drag over many steps
    });
  }

  /** @param {Api.MediaKeyResource} known */
  update(known) {
    const changed = known.count !== this.known.count || known.last_step !== this.known.last_step;
    this.known = known;
    if (changed && this.steps.length) this.read();
  }

  async read() {
    const follows = Number(this.range.value) === Number(this.range.max);
    try {
      const items = await callAll(`${this.root}/media`, { key: this.known.key });
      this.steps = [...grouped(items)]
        .sort(([one], [other]) => one - other)
        .map(([step, of]) => [step, of.sort((a, b) => a.position - b.position)]);
    } catch (error) {
      this.content.replaceChildren(make("p", { class: "hint", text: error.message }));
      return;
    }
    if (!this.steps.length) return;
    this.range.max = String(this.steps.length - 1);
    if (follows) this.range.value = this.range.max;
    this.range.hidden = this.steps.length === 1;
    if (this.wanted !== null) this.select(this.wanted);
    this.label();
    if (follows || this.wanted !== null) await this.show();
  }

  /**
   * Show the items of a step, or the last ones before it.
   *
   * @param {number | null} step
   */
  goTo(step) {
    this.wanted = step;
    if (!this.steps.length) return;
    this.select(step ?? Infinity);
    this.label();
    this.show();
  }

  /** @param {number} step */
  select(step) {
    this.range.value = String(
      Math.max(
        0,
        this.steps.findLastIndex(([one]) => one <= step),
      ),
    );
  }

  label() {
    setText(this.step, `step ${count(this.steps[Number(this.range.value)][0])}`);
    this.range.setAttribute("aria-valuetext", this.step.textContent);
  }

  async show() {
    const [, items] = (this.newest = this.steps[Number(this.range.value)]);
    const of = this.newest;
    const views = await Promise.all(items.slice(0, SHOWN).map((item) => mediaView(this.root, item)));
    if (this.newest !== of) return; // another step was chosen meanwhile
    const left =
      items.length > SHOWN ? [make("p", { class: "hint", text: `${SHOWN} of ${count(items.length)} are shown.` })] : [];
    this.content.replaceChildren(...views, ...left);
  }
}

/** @param {Api.MediaResource[]} items */
function grouped(items) {
  /** @type {Map<number, Api.MediaResource[]>} */
  const groups = new Map();
  for (const item of items) groups.set(item.step, [...(groups.get(item.step) ?? []), item]);
  return groups;
}
