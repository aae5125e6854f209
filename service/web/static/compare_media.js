// The media of several runs under one key, side by side: each run shows its items of the chosen step, or of the nearest
// step before it. Files are read while their run is in view, and released when it is not.

import { urlOf } from "./address.js";
import { call, query } from "./api.js";
import { count } from "./format.js";
import { TERMINAL } from "./job_status.js";
import { mediaView, refusalOf, stepOf } from "./media_view.js";
import { byId, make, setText } from "./page.js";
import { inParts } from "./parts.js";

const RUNS_PER_REQUEST = 20; // the limit of the API
const SHOWN = 4; // items of one run
const DRAG = 80; // milliseconds until a step is read to which the slider was moved
const KEY = "media"; // in the address
const STEP = "step"; // in the address

/** The section of the media; it is hidden until a run has some. */
export class ComparedMedia {
  /**
   * @param {Run[]} runs
   * @param {{ isShown: (run: Run) => boolean, colourOf: (run: Run, n: number) => string }} view
   */
  constructor(runs, { isShown, colourOf }) {
    this.runs = runs;
    this.isShown = isShown;
    this.colourOf = colourOf;
    const parameters = new URLSearchParams(location.search);
    this.key = parameters.get(KEY) ?? "";
    /** @type {number | null} null: the newest. */
    this.wanted = stepOf(parameters.get(STEP) ?? "");
    /** @type {Map<string, Api.MediaKeyResource[]>} */
    this.keys = new Map(); // by run
    /** @type {number[]} */
    this.steps = []; // of all shown runs
    /** @type {Map<string, Cell>} */
    this.cells = new Map(); // by run
    this.select = byId("media-key", HTMLSelectElement);
    this.range = byId("media-range", HTMLInputElement);
    this.field = byId("media-step", HTMLInputElement);
    this.list = byId("media-runs");
    this.isOpen = false;
    this.inView = new IntersectionObserver((entries) => this.onView(entries), { root: this.list, rootMargin: "150px" });
    this.select.addEventListener("change", () => this.choose(this.select.value));
    this.range.addEventListener("input", () => this.drag());
    this.field.addEventListener("change", () => this.goTo(stepOf(this.field.value)));
    byId("media-goto").addEventListener("submit", (event) => {
      event.preventDefault();
      this.goTo(stepOf(this.field.value));
    });
    const section = new IntersectionObserver(
      ([{ isIntersecting }]) => {
        if (!isIntersecting) return;
        section.disconnect();
        this.open();
      },
      { rootMargin: "400px" },
    );
    section.observe(byId("media"));
  }

  /** Make the cells, and read the keys of all runs. */
  async open() {
    this.isOpen = true;
    await inParts(this.runs, (run, n) => {
      const cell = new Cell(run);
      this.cells.set(run.id, cell);
      this.list.append(cell.element);
      cell.element.dataset.id = run.id;
      cell.colour(this.colourOf(run, n));
      this.inView.observe(cell.element);
    });
    this.redraw();
    await this.readKeys(this.runs);
  }

  /** @param {Run[]} runs */
  async readKeys(runs) {
    try {
      await inGroups(runs, async (job) => {
        for (const one of (await call(`/v1/media/keys${query({ job })}`)).data) this.keys.set(one.job_id, one.data);
      });
    } catch (error) {
      setText(byId("media-note"), error.message);
      return;
    }
    this.showKeys();
  }

  /** Show the keys of all runs, and read the steps of the chosen one. */
  showKeys() {
    /** @type {Map<string, { type: string, runs: number }>} */
    const all = new Map();
    for (const keys of this.keys.values())
      for (const { key, type } of keys) all.set(key, { type, runs: (all.get(key)?.runs ?? 0) + 1 });
    const names = [...all.keys()].sort();
    const texts = names.map(
      (key) => `${key} (${all.get(key)?.type}, ${all.get(key)?.runs} of ${this.runs.length} runs)`,
    );
    byId("media").hidden = !names.length;
    if (!names.length) return;
    if (texts.join("\n") !== Array.from(this.select.options, (option) => option.text).join("\n"))
      this.select.replaceChildren(...names.map((key, n) => make("option", { value: key, text: texts[n] })));
    const weight = (/** @type {string} */ name) =>
      (all.get(name)?.type === "image" ? this.runs.length : 0) + (all.get(name)?.runs ?? 0);
    const [widest] = names.toSorted((one, other) => weight(other) - weight(one)); // images first
    this.choose(all.has(this.key) ? this.key : widest, { isKept: true });
  }

  /**
   * Show the media under a key.
   *
   * @param {string} key
   * @param {{ isKept?: boolean }} options whether the address keeps the key that it has.
   */
  choose(key, { isKept = false } = {}) {
    this.select.value = key;
    if (!isKept) remember(KEY, key);
    if (this.key !== key || !isKept) for (const cell of this.cells.values()) cell.forget();
    this.key = key;
    return this.readSteps(this.runs);
  }

  /**
   * Read at which steps runs have media under the key.
   *
   * @param {Run[]} runs
   */
  async readSteps(runs) {
    const { key } = this;
    await inGroups(runs, async (job) => {
      const answers = await this.stepsOf(job, key);
      if (key !== this.key) return;
      for (const { id, steps, refusal } of answers) {
        const cell = this.cells.get(id);
        if (cell) Object.assign(cell, { steps, refusal });
      }
    });
    if (key === this.key) this.redraw();
  }

  /**
   * The steps of runs under a key. If a run of several cannot be read, each is read by itself.
   *
   * @param {string[]} job
   * @param {string} key
   * @returns {Promise<{ id: string, steps: number[] | null, refusal: string }[]>}
   */
  async stepsOf(job, key) {
    try {
      const { data } = await call(`/v1/media/steps${query({ job, key })}`);
      return data.map((/** @type {Api.JobMediaSteps} */ one) => ({ id: one.job_id, steps: one.steps, refusal: "" }));
    } catch (error) {
      if (job.length === 1) return [{ id: job[0], steps: null, refusal: refusalOf(error) }];
      return (await Promise.all(job.map((id) => this.stepsOf([id], key)))).flat();
    }
  }

  /**
   * Read the steps again of the runs that are not finished; until there are media, whether there are some.
   *
   * @param {Run[]} active
   */
  async refresh(active) {
    if (byId("media").hidden) await this.readKeys(active);
    else if (this.isOpen && this.key) await this.readSteps(active);
  }

  /** Show the runs that are visible on the page, and the slider over their steps. */
  redraw() {
    const steps = new Set();
    this.runs.forEach((run, n) => {
      const cell = this.cells.get(run.id);
      if (!cell) return;
      cell.element.hidden = !this.isShown(run);
      cell.colour(this.colourOf(run, n));
      if (this.isShown(run)) for (const step of cell.steps ?? []) steps.add(step);
    });
    this.steps = [...steps].sort((one, other) => one - other);
    this.range.max = String(Math.max(0, this.steps.length - 1));
    this.range.disabled = this.steps.length < 2;
    this.show();
  }

  /** The step whose media are shown. */
  step() {
    return this.wanted ?? this.steps.at(-1) ?? null;
  }

  drag() {
    this.wanted = this.steps[Number(this.range.value)] ?? null;
    if (this.wanted === this.steps.at(-1)) this.wanted = null; // it follows the newest
    remember(STEP, this.wanted === null ? "" : String(this.wanted));
    this.label();
    clearTimeout(this.timer);
    /** @type {number | undefined} */
    this.timer = setTimeout(() => this.show(), DRAG); // one read for a drag over many steps
  }

  /** @param {number | null} step */
  goTo(step) {
    this.field.setAttribute("aria-invalid", String(step === null && this.field.value.trim() !== ""));
    this.wanted = step;
    remember(STEP, step === null ? "" : String(step));
    this.show();
  }

  /** Show the chosen step at the slider and in the field. */
  label() {
    const step = this.step();
    this.range.value = String(Math.max(0, step === null ? 0 : this.steps.findLastIndex((one) => one <= step)));
    this.range.setAttribute("aria-valuetext", step === null ? "no step" : `step ${count(step)}`);
    if (document.activeElement !== this.field) this.field.value = this.wanted === null ? "" : String(this.wanted);
    setText(byId("media-note"), step === null ? "" : this.wanted === null ? `newest: step ${count(step)}` : "");
  }

  /** Show the step in each run that is in view. */
  show() {
    this.label();
    for (const cell of this.cells.values()) cell.show(this.key, this.step());
  }

  /** @param {IntersectionObserverEntry[]} entries */
  onView(entries) {
    for (const { isIntersecting, target } of entries) {
      const cell = target instanceof HTMLElement ? this.cells.get(target.dataset.id ?? "") : undefined;
      if (!cell) continue;
      cell.isInView = isIntersecting;
      if (isIntersecting) cell.show(this.key, this.step());
      else cell.release();
    }
  }
}

/** The items of one run. */
class Cell {
  /** @param {Run} run */
  constructor(run) {
    this.run = run;
    this.root = `/v1/jobs/${run.id}`;
    /** @type {number[] | null} null: not known. */
    this.steps = null;
    this.refusal = "";
    this.isInView = false;
    this.shown = ""; // the key and step whose items are shown or being read
    this.swatch = make("i", { class: "swatch", "aria-hidden": "true" });
    this.at = make("span", { class: "hint" });
    this.content = make("div", { class: "preview", tabindex: 0, role: "group", "aria-label": `Media of ${run.name}` });
    this.element = make(
      "li",
      {},
      make("p", {}, this.swatch, make("a", { href: urlOf(`/jobs/${run.id}?tab=media`), text: run.name })),
      make("p", {}, this.at),
      this.content,
    );
  }

  /** @param {string} colour */
  colour(colour) {
    this.swatch.style.background = colour;
  }

  /** Forget the steps, which belong to another key. */
  forget() {
    this.steps = null;
    this.refusal = "";
    this.release();
  }

  /** Release the content; the run is out of view. */
  release() {
    this.shown = "";
    this.content.removeAttribute("aria-busy");
    for (const sound of this.content.querySelectorAll("audio")) URL.revokeObjectURL(sound.src);
    this.content.replaceChildren();
  }

  /**
   * Show the items of a step, or of the nearest step before it; nothing while the run is out of view.
   *
   * @param {string} key
   * @param {number | null} wanted
   */
  async show(key, wanted) {
    const steps = this.steps ?? [];
    const step = wanted === null ? undefined : steps[steps.findLastIndex((one) => one <= wanted)];
    if (!this.isInView || this.element.hidden) return;
    if (step === undefined || wanted === null) {
      this.release();
      setText(this.at, this.absence(wanted));
      return;
    }
    const label = this.label(step, wanted);
    const name = `${step} ${key}`;
    if (this.shown === name) {
      if (!this.content.hasAttribute("aria-busy")) setText(this.at, label);
      return;
    }
    this.shown = name;
    this.content.setAttribute("aria-busy", "true"); // until then, what it shows and its label belong together
    if (!this.content.childElementCount) setText(this.at, "Loading…");
    const views = await this.read(key, step);
    if (this.shown !== name) return; // another step was chosen meanwhile
    this.release();
    this.shown = name;
    this.content.replaceChildren(...views);
    setText(this.at, label);
  }

  /**
   * @param {string} key
   * @param {number} step
   */
  async read(key, step) {
    try {
      const limit = SHOWN + 1;
      const { data, has_more: hasMore } = await call(
        `${this.root}/media${query({ key, from_step: step, to_step: step, limit })}`,
      );
      const items = data.toSorted((/** @type {any} */ one, /** @type {any} */ other) => one.position - other.position);
      const views = await Promise.all(
        items.slice(0, SHOWN).map((/** @type {any} */ item) => mediaView(this.root, item)),
      );
      const more = hasMore || items.length > SHOWN;
      return more
        ? [...views, make("p", { class: "hint", text: `The first ${SHOWN}; the run’s page has all.` })]
        : views;
    } catch (error) {
      return [make("p", { class: "hint", text: refusalOf(error) })];
    }
  }

  /** Whether the run is over, so that no further media come. */
  hasEnded() {
    return TERMINAL.has(this.run.status ?? "");
  }

  /**
   * The step whose items are shown, and how it relates to the chosen one.
   *
   * @param {number} step
   * @param {number} wanted
   */
  label(step, wanted) {
    if (step === wanted) return `step ${count(step)}`;
    const isLast = step === this.steps?.at(-1);
    return `step ${count(step)}, ${isLast && this.hasEnded() ? "the last: the run has ended" : "the nearest before"}`;
  }

  /**
   * Why the run shows nothing.
   *
   * @param {number | null} wanted
   */
  absence(wanted) {
    if (this.refusal) return this.refusal;
    if (this.steps === null) return "Loading…";
    if (this.steps.length && wanted !== null)
      return `None up to step ${count(wanted)}; the first is of step ${count(this.steps[0])}.`;
    return this.hasEnded() ? "None; the run has ended." : "None yet.";
  }
}

/**
 * Call `read` with the ids of runs, of as many as a request takes.
 *
 * @param {Run[]} runs
 * @param {(ids: string[]) => Promise<void>} read
 */
async function inGroups(runs, read) {
  for (let first = 0; first < runs.length; first += RUNS_PER_REQUEST)
    await read(runs.slice(first, first + RUNS_PER_REQUEST).map((run) => run.id));
}

/**
 * Put a value into the address; "" removes it.
 *
 * @param {string} name
 * @param {string} value
 */
function remember(name, value) {
  const address = new URLSearchParams(location.search);
  if (value) address.set(name, value);
  else address.delete(name);
  history.replaceState(null, "", `${location.pathname}?${address}`);
}
