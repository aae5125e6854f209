// Parallel coordinates: an axis for each field of a sweep and one for a metric, and a line for each run. Drawn as SVG.

import { number } from "./format.js";
import { makeSvg, within } from "./page.js";
import { onSize } from "./parts.js";

const TOP = 34;
const BOTTOM = 14;
const SIDE = 64;
const MAX_TICKS = 6; // with more different numbers, only the ends and the middle are labelled
const LOGARITHMIC = 10; // ratio of the ends from which an axis of positive numbers is logarithmic

/**
 * The number that a text stands for, as former releases stored numbers such as 1e-2; else the value itself.
 *
 * @param {any} value
 */
const asNumeric = (value) =>
  typeof value === "string" && value.trim() !== "" && Number.isFinite(Number(value)) ? Number(value) : value;

/**
 * Whether ratios of a metric's values matter, as those of losses and learning rates; another, such as an accuracy, has a linear axis.
 *
 * @param {string} metric
 */
export const hasRatios = (metric) => /(^|[/_.])(loss|perplexity|lr|learning_rate)([/_.]|$)/.test(metric);

/**
 * An axis: `position(value)` from 0 at the bottom to 1, and its ticks as pairs of a position and a label. Numbers are on a
 * logarithmic axis if `logarithmic` is true, or null and they span orders of magnitude.
 *
 * @param {any[]} values
 * @param {boolean | null} logarithmic
 * @returns {Scale}
 */
export function scale(values, logarithmic = null) {
  const known = values.map(asNumeric).filter((value) => value !== null && !Number.isNaN(value));
  const different = [...new Set(known.map((value) => JSON.stringify(value)))].map((text) => JSON.parse(text));
  const isNumeric = different.length > 0 && different.every((value) => typeof value === "number");
  different.sort((a, b) => (isNumeric ? a - b : String(a) < String(b) ? -1 : 1));
  if (different.length < 2 || !isNumeric) return categories(different);
  const [low, high] = [different[0], different.at(-1)];
  const isLogarithmic = low > 0 && (logarithmic ?? high / low >= LOGARITHMIC);
  const transform = isLogarithmic ? Math.log : (/** @type {number} */ value) => value;
  const position = (/** @type {any} */ value) =>
    (transform(asNumeric(value)) - transform(low)) / (transform(high) - transform(low));
  const middle = isLogarithmic ? Math.sqrt(low * high) : (low + high) / 2;
  const ticks = different.length <= MAX_TICKS ? different : [low, middle, high];
  return { position, isLogarithmic, ticks: ticks.map((value) => [position(value), number(value)]) };
}

/**
 * @param {any[]} values
 * @returns {Scale}
 */
function categories(values) {
  const texts = values.map((value) => JSON.stringify(value));
  const nth = (/** @type {number} */ n) => (values.length > 1 ? n / (values.length - 1) : 0.5);
  const label = (/** @type {any} */ value) =>
    typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value);
  return {
    isLogarithmic: false,
    position: (value) => nth(texts.indexOf(JSON.stringify(asNumeric(value)))),
    ticks: values.map((value, n) => [nth(n), label(value).slice(0, 14)]),
  };
}

/** @param {any} value */
const isMissing = (value) => value === null || Number.isNaN(value);

export class ParallelCoordinates {
  /**
   * `highlight(id)` gets the line under the pointer (null: none), `filtered(ids)` the lines that pass the filters.
   *
   * @param {HTMLElement} root
   * @param {{ highlight: (id: string | null) => void, filtered: (ids: Set<string>) => void }} calls
   */
  constructor(root, { highlight, filtered }) {
    this.root = root;
    this.onHighlight = highlight;
    this.onFilter = filtered;
    /** @type {Map<string, Extent>} */
    this.ranges = new Map();
    /** @type {Coordinates} */
    this.content = { axes: [], lines: [] };
    /** @type {[string, SVGPathElement][]} */
    this.paths = [];
    /** @type {Scale[]} */
    this.scales = [];
    /** @type {(n: number) => number} */
    this.x = () => 0;
    /** @type {(position: number) => number} */
    this.y = () => 0;
    /** @type {Extent | null} */
    this.size = null;
    onSize(root, (size) => {
      this.size = size;
      this.draw();
    });
  }

  /**
   * Show `{ axes, lines }`: names of axes, and lines with an id, a name and a value for each axis (null: none).
   *
   * @param {Coordinates} content
   */
  show(content) {
    if (JSON.stringify(content) === JSON.stringify(this.content)) return;
    this.content = content;
    this.draw();
  }

  /** @param {string | null} id */
  highlight(id) {
    for (const [own, path] of this.paths) path.classList.toggle("highlighted", own === id);
  }

  draw() {
    if (!this.size || !this.content.lines.length) return;
    const { axes, lines, logarithmic } = this.content;
    const [width, height] = [Math.max(this.size[0], axes.length * 110), this.size[1]];
    this.x = (n) => (axes.length > 1 ? SIDE + (n * (width - 2 * SIDE)) / (axes.length - 1) : width / 2);
    this.y = (position) => TOP + (1 - position) * (height - TOP - BOTTOM);
    this.scales = axes.map((_, n) =>
      scale(
        lines.map((line) => line.values[n]),
        logarithmic?.[n],
      ),
    );
    const svg = makeSvg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `${lines.length} runs across ${axes.join(", ")}`,
      style: `min-width:${width}px`,
    });
    this.paths = lines.map((line) => [line.id, this.path(line)]);
    svg.append(...this.paths.map(([, path]) => path), ...axes.map((name, n) => this.axis(name, n)));
    this.root.replaceChildren(svg);
    this.filter();
  }

  /**
   * The path of a run, interrupted where it has no value.
   *
   * @param {Coordinates["lines"][number]} line
   */
  path(line) {
    let command = "M";
    const parts = line.values.map((value, n) => {
      if (isMissing(value)) {
        command = "M";
        return "";
      }
      const part = `${command}${this.x(n).toFixed(1)} ${this.y(this.scales[n].position(value)).toFixed(1)}`;
      command = "L";
      return part;
    });
    const last = line.values.at(-1);
    const stroke =
      typeof last === "number" && !Number.isNaN(last)
        ? `color-mix(in oklab, var(--c2) ${Math.round(this.scales.at(-1).position(last) * 100)}%, var(--accent))`
        : "var(--soft)";
    const path = makeSvg(
      "path",
      { d: parts.join(""), style: `stroke:${stroke}`, "data-id": line.id },
      makeSvg("title", {}, line.name),
    );
    path.addEventListener("pointerenter", () => this.onHighlight(line.id));
    path.addEventListener("pointerleave", () => this.onHighlight(null));
    return path;
  }

  /**
   * @param {string} name
   * @param {number} n
   */
  axis(name, n) {
    const x = this.x(n);
    const isLast = n === this.content.axes.length - 1;
    const labels = this.scales[n].ticks.map(([position, text]) =>
      label(text, x + (isLast ? 8 : -8), this.y(position) + 4, isLast ? "start" : "end"),
    );
    const range = makeSvg("rect", { class: "range", x: x - 6, width: 12, y: 0, height: 0 });
    const handle = makeSvg("rect", {
      class: "handle",
      x: x - 12,
      width: 24,
      y: this.y(1) - 6,
      height: this.y(0) - this.y(1) + 12,
    });
    this.connectBrush(handle, range, name);
    this.showRange(range, name);
    return makeSvg(
      "g",
      {},
      makeSvg("line", { class: "axis", x1: x, x2: x, y1: this.y(1), y2: this.y(0) }),
      label(`${name}${this.scales[n].isLogarithmic ? " (log)" : ""}`, x, 16, "middle", "title"),
      ...labels,
      range,
      handle,
    );
  }

  // -- filters by a range of an axis -----------------------------------------------------------------------------------

  /**
   * @param {SVGRectElement} handle
   * @param {SVGRectElement} range
   * @param {string} name
   */
  connectBrush(handle, range, name) {
    let start = /** @type {number | null} */ (null);
    const position = (/** @type {PointerEvent} */ event) => {
      const box = within(this.root, "svg", SVGElement).getBoundingClientRect();
      return Math.min(1.02, Math.max(-0.02, 1 - (event.clientY - box.top - TOP) / (this.y(0) - this.y(1))));
    };
    const update = () => {
      this.showRange(range, name);
      this.filter();
    };
    handle.addEventListener("pointerdown", (event) => {
      start = position(event);
      handle.setPointerCapture(event.pointerId);
    });
    handle.addEventListener("pointermove", (event) => {
      if (start === null || Math.abs(position(event) - start) < 0.02) return;
      this.ranges.set(name, [Math.min(start, position(event)), Math.max(start, position(event))]);
      update();
    });
    handle.addEventListener("pointerup", () => {
      start = null;
    });
    handle.addEventListener("dblclick", () => {
      this.ranges.delete(name);
      update();
    });
  }

  /**
   * @param {SVGRectElement} element
   * @param {string} name
   */
  showRange(element, name) {
    const [low, high] = this.ranges.get(name) ?? [0, 0];
    element.setAttribute("y", String(this.y(high)));
    element.setAttribute("height", String(this.y(low) - this.y(high)));
  }

  filter() {
    const { axes, lines } = this.content;
    const passes = (/** @type {Coordinates["lines"][number]} */ line) =>
      axes.every((name, n) => {
        const range = this.ranges.get(name);
        if (!range) return true;
        if (isMissing(line.values[n])) return false;
        const position = this.scales[n].position(line.values[n]);
        return position >= range[0] && position <= range[1];
      });
    const passing = new Set(lines.filter(passes).map((line) => line.id));
    for (const [id, path] of this.paths) path.classList.toggle("off", !passing.has(id));
    this.onFilter(passing);
  }
}

/**
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {string} anchor
 */
const label = (text, x, y, anchor, name = "") => makeSvg("text", { x, y, "text-anchor": anchor, class: name }, text);
