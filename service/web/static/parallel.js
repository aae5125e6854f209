// Parallel coordinates: an axis for each field and one for what came of it, a line for each run. Drawn as SVG: Plotly's
// own needs a program made of text at run time, which the content-security policy forbids.

import { number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 34;
const BOTTOM = 14;
const SIDE = 64;
const FEW = 8; // so many different values get a place each

function make(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Where values are on an axis, from 0 at the bottom to 1, and the words beside it. Values without a place are null. */
function scale(values, continuous) {
  const known = values.filter((value) => value !== null && !Number.isNaN(value));
  const different = [...new Set(known.map((value) => JSON.stringify(value)))].map((text) => JSON.parse(text));
  const isNumber = different.length > 0 && different.every((value) => typeof value === "number");
  different.sort((a, b) => (isNumber ? a - b : String(a) < String(b) ? -1 : 1));
  if ((!continuous && different.length <= FEW) || different.length < 2 || !isNumber) return steps(different);
  const [low, high] = [different[0], different.at(-1)];
  const logarithmic = low > 0 && high / low >= 50;
  const bend = logarithmic ? Math.log : (value) => value;
  const place = (value) => (bend(value) - bend(low)) / (bend(high) - bend(low));
  const middle = logarithmic ? Math.sqrt(low * high) : (low + high) / 2;
  return { place, ticks: [low, middle, high].map((value) => [place(value), number(value, 3)]) };
}

function steps(values) {
  const texts = values.map((value) => JSON.stringify(value));
  const at = (n) => (values.length > 1 ? n / (values.length - 1) : 0.5);
  const said = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));
  return { place: (value) => at(texts.indexOf(JSON.stringify(value))), ticks: values.map((value, n) => [at(n), said(value).slice(0, 14)]) };
}

export class Parallel {
  /** `light(id)` is told which line the pointer is on (null: none); `keep(ids)` which lines are left. */
  constructor(root, { light, keep }) {
    Object.assign(this, { root, onLight: light, onKeep: keep, ranges: new Map(), told: null });
    new ResizeObserver(() => this.draw()).observe(root);
  }

  show(told) {
    this.told = told;
    this.draw();
  }

  light(id) {
    for (const [own, path] of this.paths ?? []) path.classList.toggle("on", own === id);
  }

  draw() {
    if (!this.told?.lines.length) return;
    const { axes, lines } = this.told;
    const [width, height] = [Math.max(this.root.clientWidth, axes.length * 110), this.root.clientHeight];
    this.x = (n) => (axes.length > 1 ? SIDE + (n * (width - 2 * SIDE)) / (axes.length - 1) : width / 2);
    this.y = (part) => TOP + (1 - part) * (height - TOP - BOTTOM);
    this.scales = axes.map((_, n) => scale(lines.map((line) => line.values[n]), n === axes.length - 1));
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${lines.length} runs across ${axes.join(", ")}`, style: `min-width:${width}px` });
    this.paths = lines.map((line) => [line.id, this.path(line)]);
    svg.append(...this.paths.map(([, path]) => path), ...axes.map((name, n) => this.axis(name, n)));
    this.root.replaceChildren(svg);
    this.filter();
  }

  /** Broken off where a run has no value. */
  path(line) {
    let pen = "M";
    const parts = line.values.map((value, n) => {
      if (value === null || Number.isNaN(value)) { pen = "M"; return ""; }
      const part = `${pen}${this.x(n).toFixed(1)} ${this.y(this.scales[n].place(value)).toFixed(1)}`;
      pen = "L";
      return part;
    });
    const last = line.values.at(-1);
    const part = typeof last === "number" && !Number.isNaN(last) ? this.scales.at(-1).place(last) : null;
    const stroke = part === null ? "var(--soft)" : `color-mix(in oklab, var(--c2) ${Math.round(part * 100)}%, var(--accent))`;
    const title = make("title", {});
    title.textContent = line.name;
    const path = make("path", { d: parts.join(""), style: `stroke:${stroke}`, "data-id": line.id }, title);
    path.addEventListener("pointerenter", () => this.onLight(line.id));
    path.addEventListener("pointerleave", () => this.onLight(null));
    return path;
  }

  axis(name, n) {
    const x = this.x(n);
    const group = make("g", {});
    const isLast = n === this.told.axes.length - 1;
    group.append(make("line", { class: "axis", x1: x, x2: x, y1: this.y(1), y2: this.y(0) }), word(name, x, 16, "middle", "title"));
    for (const [part, text] of this.scales[n].ticks) group.append(word(text, x + (isLast ? 8 : -8), this.y(part) + 4, isLast ? "start" : "end"));
    const kept = make("rect", { class: "kept", x: x - 6, width: 12, y: 0, height: 0 });
    const handle = make("rect", { class: "handle", x: x - 12, width: 24, y: this.y(1) - 6, height: this.y(0) - this.y(1) + 12 });
    this.brush(handle, kept, name);
    group.append(kept, handle);
    this.shade(kept, name);
    return group;
  }

  // -- a part of an axis ---------------------------------------------------------------------------------------------

  brush(handle, kept, name) {
    let from = null;
    const at = (event) => {
      const box = this.root.firstElementChild.getBoundingClientRect();
      return Math.min(1.02, Math.max(-0.02, 1 - (event.clientY - box.top - TOP) / (this.y(0) - this.y(1))));
    };
    handle.addEventListener("pointerdown", (event) => { from = at(event); handle.setPointerCapture(event.pointerId); });
    handle.addEventListener("pointermove", (event) => {
      if (from === null || Math.abs(at(event) - from) < 0.02) return;
      this.ranges.set(name, [Math.min(from, at(event)), Math.max(from, at(event))]);
      this.shade(kept, name);
      this.filter();
    });
    handle.addEventListener("pointerup", () => { from = null; });
    handle.addEventListener("dblclick", () => { this.ranges.delete(name); this.shade(kept, name); this.filter(); });
  }

  shade(kept, name) {
    const [low, high] = this.ranges.get(name) ?? [0, 0];
    kept.setAttribute("y", this.y(high));
    kept.setAttribute("height", this.y(low) - this.y(high));
  }

  filter() {
    const { axes, lines } = this.told;
    const inside = (line) => axes.every((name, n) => {
      const range = this.ranges.get(name);
      if (!range) return true;
      const value = line.values[n];
      if (value === null || Number.isNaN(value)) return false;
      const part = this.scales[n].place(value);
      return part >= range[0] && part <= range[1];
    });
    const kept = new Set(lines.filter(inside).map((line) => line.id));
    for (const [id, path] of this.paths) path.classList.toggle("off", !kept.has(id));
    this.onKeep(kept);
  }
}

function word(text, x, y, anchor, name = "") {
  const element = make("text", { x, y, "text-anchor": anchor, class: name });
  element.textContent = text;
  return element;
}
