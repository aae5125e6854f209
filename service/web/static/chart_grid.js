// The charts of a page, in sections that collapse: searched, pinned, enlarged and exported. They share the range and the
// position of the pointer. Only charts in view are drawn, and those of a closed section are made when it is opened.

import { Chart } from "./chart.js";
import { COMBINED, includes } from "./chart_list.js";
import { matcher, storeView } from "./chart_view.js";
import { onThemeChange, sample } from "./colours.js";
import { smoothed } from "./curves.js";
import { closeMenu } from "./menus.js";
import { make, setText, toastError } from "./page.js";
import { onSize } from "./parts.js";

const DRAW_INTERVAL = 150; // milliseconds from the second drawing on, extended after a slow one
export const PINNED = "Pinned";
export const LOADING = "Loading…"; // in a chart whose points are being read
const MAX_LEGEND = 6; // names below a chart; of more curves, the table beside the pointer has those near it
/** @type {[string, "savePng" | "saveSvg" | "saveCsv"][]} labels, and functions of chart_export.js */
const EXPORTS = [
  ["PNG image", "savePng"],
  ["SVG image", "saveSvg"],
  ["CSV table", "saveCsv"],
];

export class ChartGrid {
  /**
   * `source` has `charts()`, the definitions in their order (chart_list.js); `curvesOf(chart)`, curves as `Chart` draws them
   * with a `key`, or null if they are not loaded; `absenceOf(chart)`, why there are none; `marks()`; `subject()`, with which the names of
   * exported files begin; and `newestOf(chart, curves)`, a text. `onRange` is called when
   * the range has changed; `isOpen(name, before, rows)` tells whether a section of so many rows is open at first, after so many
   * of others; `headlinesOf(definitions)` returns the charts that matter most; and `width` is the width of the root, where it was read
   * before other changes of the page, which a later read would lay out.
   *
   * @param {HTMLElement} root
   * @param {ChartsView} view
   * @param {ChartSource} source
   * @param {ChartGridOptions} options
   */
  constructor(
    root,
    view,
    source,
    {
      onRange = () => {},
      onHover = () => {},
      isOpen = () => true,
      headlinesOf = (all) => all,
      width = root.clientWidth,
    } = {},
  ) {
    this.root = root;
    this.view = view;
    this.source = source;
    this.onRange = onRange;
    this.onHover = onHover;
    this.isOpen = isOpen;
    this.headlinesOf = headlinesOf;
    this.isHeadline = false;
    this.headline = make("div", { class: "charts headlines" });
    this.columns = columnsOf(width);
    /** @type {Map<string, Panel>} */
    this.panels = new Map();
    /** @type {Map<string, Section>} */
    this.sections = new Map();
    /** @type {Set<string>} */
    this.visible = new Set();
    /** @type {Set<string>} */
    this.dirty = new Set();
    this.interval = 0;
    this.observer = new IntersectionObserver((entries) => entries.forEach((entry) => this.setVisible(entry)), {
      rootMargin: "300px 0px",
    });
    this.dialog = make("dialog", { class: "enlarged", "aria-label": "Chart" });
    this.closer = make("button", {
      type: "button",
      class: "quiet close",
      "aria-label": "Close",
      title: "Close",
      text: "×",
      onclick: () => this.dialog.close(),
    });
    /** @type {number | undefined} */
    this.timer = undefined;
    this.none = make("p", { class: "hint", role: "status" });
    root.append(this.headline);
    root.after(this.none, this.dialog);
    onSize(root, ([width]) => this.setWidth(width));
    this.dialog.addEventListener("close", () => this.restore());
    onThemeChange(() => {
      for (const { chart } of this.panels.values()) chart.restyle();
      this.redraw();
    });
    this.refresh();
  }

  /** Add the charts of metrics that are new, and put all into the sections of the view. */
  refresh() {
    const definitions = this.source.charts();
    const ids = new Set(definitions.map(({ id }) => id));
    for (const id of this.panels.keys()) if (!ids.has(id)) this.remove(id);
    for (const section of this.sections.values()) section.definitions = [];
    const groups = Map.groupBy(definitions, ({ id, section }) => (this.view.pins.includes(id) ? PINNED : section));
    let rows = 0; // of charts in open sections
    for (const [name, members] of groups) {
      const own = Math.ceil(Math.min(members.length, this.pageSize) / this.columns);
      const section = this.section(name, rows, own);
      section.definitions = members;
      if (section.element.open && name !== PINNED && name !== COMBINED) rows += own; // which are the reader's choice
    }
    this.arrange();
    this.schedule();
  }

  /** Put a page of the charts of each open section that match the search into it; hide sections without any. */
  arrange() {
    const matches = matcher(this.view.search);
    let total = 0;
    for (const section of this.sections.values()) {
      const { element, size, grid, pager, range } = section;
      const shown = section.definitions.filter(({ title, keys, prefix }) => matches(title, prefix, ...keys));
      const pages = Math.ceil(shown.length / this.pageSize);
      section.page = Math.max(0, Math.min(section.page, pages - 1));
      const first = section.page * this.pageSize;
      const part = shown.slice(first, first + this.pageSize);
      element.hidden = shown.length === 0;
      setText(size, String(shown.length));
      pager.hidden = pages < 2;
      setText(range, `${first + 1} to ${first + part.length} of ${shown.length}`);
      if (element.open && !this.isHeadline) this.fill(grid, part);
      total += shown.length;
    }
    if (this.isHeadline)
      this.fill(this.headline, this.headlinesOf([...this.sections.values()].flatMap((one) => one.definitions)));
    setText(this.none, this.view.search && total === 0 && !this.isHeadline ? "No chart matches." : "");
  }

  /**
   * Show these charts in an element, in their order, and no other.
   *
   * @param {HTMLElement} grid
   * @param {ChartDefinition[]} definitions
   */
  fill(grid, definitions) {
    /** @type {Set<Element>} */
    const shown = new Set();
    /** @type {Element | null} */
    let last = null;
    for (const definition of definitions) {
      const known = this.panels.get(definition.id);
      if (known && String(known.definition.keys) !== String(definition.keys)) this.remove(definition.id); // it was of another metric
      const panel = this.panels.get(definition.id) ?? this.create(definition);
      panel.definition = definition;
      const { figure } = panel;
      figure.hidden = false;
      if (figure.parentElement === this.dialog) continue;
      /** @type {Element | null} */
      const next = last ? last.nextElementSibling : grid.firstElementChild;
      if (next !== figure) grid.insertBefore(figure, next);
      shown.add(figure);
      last = figure;
    }
    for (const one of grid.querySelectorAll("figure")) if (!shown.has(one)) one.hidden = true;
  }

  /**
   * Show only the charts that matter most, without sections; or all again.
   *
   * @param {boolean} isHeadline
   */
  setHeadline(isHeadline) {
    if (isHeadline === this.isHeadline) return;
    this.isHeadline = isHeadline;
    this.root.classList.toggle("brief", isHeadline);
    this.refresh();
  }

  /** The charts of a section that are shown at a time: on a narrow page, one below the other. */
  get pageSize() {
    return this.columns === 1 ? 3 : 2 * this.columns;
  }

  /** @param {number} width */
  setWidth(width) {
    const columns = columnsOf(width);
    if (columns === this.columns) return;
    this.columns = columns;
    this.refresh();
  }

  /**
   * Redraw the charts of these metrics, or all charts.
   *
   * @param {string[] | null} keys
   */
  redraw(keys = null) {
    for (const [id, { definition }] of this.panels)
      if (!keys || keys.some((key) => includes(definition, key))) this.dirty.add(id);
    this.schedule();
  }

  /**
   * Change the view, and store it in the address.
   *
   * @param {Partial<ChartsView>} values
   */
  change(values) {
    Object.assign(this.view, values);
    storeView(this.view);
    if ("search" in values) this.openSections();
    if (["search", "pins", "combined"].some((name) => name in values)) this.refresh();
    this.redraw();
  }

  /**
   * Show a range of positions in all charts; null shows everything.
   *
   * @param {Extent | null} range
   */
  zoom(range) {
    this.change({ range });
    this.onRange(range);
  }

  // -- sections and panels ---------------------------------------------------------------------------------------------

  /**
   * The section of a name; a new one has `before` rows of charts of others before it, and so many `rows`.
   *
   * @param {string} name
   * @param {number} before
   * @param {number} rows
   * @returns {Section}
   */
  section(name, before, rows) {
    const known = this.sections.get(name);
    if (known) return known;
    const grid = make("div", { class: "charts" });
    const size = make("small");
    const isOpen = this.isOpen(name, before, rows);
    const element = make(
      "details",
      { class: "chart-section" },
      make("summary", {}, make("h3", { text: name }), " ", size),
      grid,
    );
    const turn = (/** @type {number} */ by, /** @type {string} */ label, /** @type {string} */ text) =>
      make("button", {
        type: "button",
        class: "quiet tool",
        "aria-label": `${label} charts of ${name}`,
        title: label,
        text,
        onclick: () => {
          section.page += by;
          this.arrange();
          this.schedule();
        },
      });
    const range = make("span", { role: "status" });
    const pager = make("div", { class: "pager" }, turn(-1, "Previous", "‹"), range, turn(1, "Next", "›"));
    element.append(pager);
    const section = { element, grid, size, isOpen, definitions: [], pager, range, page: 0 };
    element.addEventListener("toggle", () => {
      if (element.open) this.arrange();
      this.schedule();
      if (this.view.search) return; // which opens all
      const others = this.view.toggled.filter((one) => one !== name);
      const toggled = element.open === isOpen ? others : [...others, name];
      if (toggled.length !== this.view.toggled.length) this.change({ toggled });
    });
    if (name === PINNED) this.root.prepend(element);
    else this.root.append(element);
    this.sections.set(name, section);
    this.openSections([name]);
    return section;
  }

  /**
   * Open sections as the reader wants them; during a search, all.
   *
   * @param {Iterable<string>} names
   */
  openSections(names = this.sections.keys()) {
    for (const name of names) {
      const section = this.sections.get(name);
      if (section)
        section.element.open = Boolean(this.view.search) || section.isOpen !== this.view.toggled.includes(name);
    }
  }

  /** @param {ChartDefinition} definition */
  create(definition) {
    const { id, title, unit, note } = definition;
    const frame = make(
      "div",
      { class: "frame", role: "img", "aria-label": title },
      make("span", { class: "placeholder", text: LOADING }),
    );
    const output = make("output");
    const scale = make("small");
    const legend = make("p", { class: "legend" });
    const figure = make(
      "figure",
      { class: "card chart", id: `chart-${id}` },
      make(
        "figcaption",
        {},
        make("span", { class: "chart-title", text: title, title }),
        unit ? make("small", { text: unit }) : null,
        scale,
        output,
        this.tools(definition),
      ),
      frame,
      legend,
      note ? make("p", { class: "hint", text: note }) : null,
    );
    const chart = new Chart(frame, {
      onZoom: (range) => this.zoom(range),
      onHover: (position, run = null) => {
        this.hover(chart, position);
        this.onHover(position, run);
      },
    });
    const panel = { definition, figure, frame, output, scale, legend, chart };
    this.panels.set(id, panel);
    this.dirty.add(id);
    this.observer.observe(figure);
    return panel;
  }

  /** @param {string} id */
  panel(id) {
    return /** @type {Panel} */ (this.panels.get(id));
  }

  /** @param {string} id */
  remove(id) {
    const { figure } = this.panel(id);
    this.observer.unobserve(figure);
    figure.remove();
    this.panels.delete(id);
    for (const set of [this.visible, this.dirty]) set.delete(id);
  }

  /** @param {ChartDefinition} chart */
  tools({ id, keys, section }) {
    /**
     * @param {string} label
     * @param {string} text
     * @param {() => void} onclick
     * @param {boolean} [pressed]
     */
    const button = (label, text, onclick, pressed) =>
      make("button", {
        type: "button",
        class: "quiet tool",
        "aria-label": label,
        title: label,
        text,
        onclick,
        ...(pressed === undefined ? {} : { "aria-pressed": String(pressed) }),
      });
    /**
     * @param {"pins" | "logs"} name
     * @param {string} label
     * @param {string} text
     */
    const toggle = (name, label, text) => {
      const one = button(
        label,
        text,
        () => {
          const others = this.view[name].filter((other) => other !== id);
          const isOn = others.length === this.view[name].length;
          this.change({ [name]: isOn ? [...others, id] : others });
          one.setAttribute("aria-pressed", String(isOn));
        },
        this.view[name].includes(id),
      );
      return one;
    };
    const menu = make(
      "details",
      { class: "menu" },
      make("summary", { class: "button quiet tool", "aria-label": "Export", title: "Export", text: "⤓" }),
      make(
        "div",
        {},
        ...EXPORTS.map(([label, save]) =>
          button(label, label, () => {
            closeMenu(menu);
            this.export(id, save).catch(toastError);
          }),
        ),
      ),
    );
    const drop = () => this.change({ combined: this.view.combined.filter((one) => one.join() !== keys.join()) });
    return make(
      "span",
      { class: "tools" },
      section === COMBINED ? button("Remove this chart", "×", drop) : null,
      toggle("pins", "Pin", "⚲"),
      toggle("logs", "Log scale", "log"),
      button("Enlarge", "⤢", () => this.enlarge(id)),
      menu,
    );
  }

  /**
   * @param {string} id
   * @param {"savePng" | "saveSvg" | "saveCsv"} save
   */
  async export(id, save) {
    const files = await import("./chart_export.js");
    const {
      chart,
      definition: { title },
    } = this.panel(id);
    if (chart.plot) files[save](chart, `${this.source.subject()} ${title}`);
  }

  /** @param {string} id */
  enlarge(id) {
    if (this.dialog.open) {
      this.dialog.close();
      return;
    }
    const { figure } = this.panel(id);
    this.place = make("span", { hidden: true });
    figure.replaceWith(this.place);
    this.dialog.replaceChildren(figure, this.closer);
    this.dialog.showModal();
    this.dirty.add(id);
    this.schedule();
  }

  restore() {
    const figure = this.dialog.querySelector("figure");
    if (!figure) return;
    this.place?.replaceWith(figure);
    this.refresh();
  }

  // -- drawing ---------------------------------------------------------------------------------------------------------

  /** @param {IntersectionObserverEntry} entry */
  setVisible(entry) {
    const id = entry.target.id.slice("chart-".length);
    if (entry.isIntersecting) this.visible.add(id);
    else this.visible.delete(id);
    this.schedule();
  }

  schedule() {
    this.timer ??= setTimeout(async () => {
      const start = performance.now();
      for (const id of [...this.dirty].filter((one) => this.visible.has(one))) {
        this.dirty.delete(id);
        const panel = this.panels.get(id);
        if (!panel) continue; // removed while another one was drawn
        this.draw(panel);
        this.interval = DRAW_INTERVAL;
        await nextTask();
      }
      const elapsed = performance.now() - start;
      setTimeout(
        () => {
          this.timer = undefined;
          if ([...this.dirty].some((id) => this.visible.has(id))) this.schedule();
        },
        Math.min(400, elapsed * 2),
      );
    }, this.interval);
  }

  /** @param {Panel} panel */
  draw({ definition, frame, chart, output, scale, legend }) {
    const curves = this.source.curvesOf(definition);
    if (!curves?.some(({ x }) => x.length)) {
      const placeholder = frame.querySelector(".placeholder");
      if (placeholder) setText(placeholder, this.source.absenceOf(definition));
      return;
    }
    const { axis, clip, range, weight, logX } = this.view;
    const log = this.view.log || this.view.logs.includes(definition.id);
    chart.show(
      curves.flatMap((curve) => lines(curve, weight, log, curves.length)),
      {
        axis,
        clip,
        range,
        log,
        logX: logX && axis !== "time",
        fromZero: definition.fromZero,
        marks: this.source.marks(),
      },
    );
    const hasFinite = curves.some(({ y }) => y.some(Number.isFinite));
    if (hasFinite) delete frame.dataset.note;
    else frame.dataset.note = "No value is finite";
    setText(scale, log ? "(log)" : "");
    setText(output, this.source.newestOf(definition, curves));
    const named = curves.length < 2 || curves.length > MAX_LEGEND ? [] : curves;
    legend.replaceChildren(
      ...named.map((curve) =>
        make("span", {}, make("i", { class: "swatch", style: `background:${sample(curve)}` }), curve.name),
      ),
    );
  }

  /**
   * Show the position of the pointer in one chart in all others in view.
   *
   * @param {Chart} origin
   * @param {number | null} position
   */
  hover(origin, position) {
    for (const id of this.visible) {
      const { chart } = this.panel(id);
      if (chart !== origin) chart.hover(position);
    }
  }
}

/**
 * A curve as it is drawn: smoothed, over the faint original if there are few.
 *
 * @param {Curve} curve
 * @param {number} weight
 * @param {boolean} log
 * @param {number} count
 * @returns {Curve[]}
 */
function lines(curve, weight, log, count) {
  if (!weight || curve.dots) return [curve];
  const smooth = { ...curve, y: smoothed(curve.y, weight, { log }), band: undefined };
  return count > MAX_LEGEND ? [smooth] : [{ ...curve, opacity: 0.25, hidden: true }, smooth];
}

/**
 * The columns of charts in so many pixels, as in charts.css; 0 is a page that is not shown yet.
 *
 * @param {number} width
 */
const columnsOf = (width) => (width === 0 || width > 1050 ? 3 : width > 660 ? 2 : 1);

/** Let pending events run between two drawings. */
const nextTask = () => new Promise((resolve) => setTimeout(resolve));
