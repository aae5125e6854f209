// One chart. uPlot draws the axes, follows the pointer and selects ranges; the curves are drawn on its canvas, so that
// each can have positions of its own.

import {
  countLabels,
  firstAfter,
  linearTicks,
  logTicks,
  nearestPoint,
  nearestPosition,
  positionRange,
  secondLabels,
  SECONDS,
  valueLabels,
  valueRange,
  WHOLE,
} from "./chart_axes.js";
import { colour, sample } from "./colours.js";
import { count, dateTime, duration, number } from "./format.js";
import { make } from "./page.js";

const VALUE_AXIS_WIDTH = 56;
const VALUE_SPACE = 30; // pixels between two labels of values, at least
const SIDE = 32; // pixels at the right, for half of the last label of the positions
const MAX_ROWS = 12; // of the table beside the pointer
const NEAR = 24; // pixels between the pointer and a curve that it is at
const DASHES = { checkpoint: [2, 3], resumed: [], interrupted: [6, 4] };
const MARK_COLOURS = { checkpoint: "soft", resumed: "wait", interrupted: "bad" };

/**
 * How positions of an axis are shown: to readers, and as labels.
 *
 * @type {Record<Axis, { text: (x: number) => string, labels: ((splits: number[], increment: number) => string[]) | null, distances?: number[] }>}
 */
const POSITIONS = {
  step: { text: (x) => `step ${count(Math.round(x))}`, labels: countLabels, distances: WHOLE },
  epoch: { text: (x) => `epoch ${number(x)}`, labels: countLabels },
  tokens: { text: (x) => `${count(Math.round(x))} tokens`, labels: countLabels, distances: WHOLE },
  relative: { text: (x) => `after ${duration(x)}`, labels: secondLabels, distances: SECONDS },
  seconds: { text: (x) => `after ${duration(x)} of training`, labels: secondLabels, distances: SECONDS },
  time: { text: (x) => dateTime(x * 1000, "exact"), labels: null }, // uPlot's own labels of local times
};

export class Chart {
  /**
   * `onZoom` gets the selected range of positions, or null after a double click; `onHover` the position of the pointer, or
   * null when it leaves.
   *
   * @param {HTMLElement} frame
   * @param {{ onZoom: (range: Extent | null) => void, onHover: (position: number | null, run?: string | null) => void }} options
   */
  constructor(frame, { onZoom, onHover }) {
    this.frame = frame;
    this.onZoom = onZoom;
    this.onHover = onHover;
    /** @type {Curve[]} */
    this.curves = [];
    /** @type {DrawnView} */
    this.view = { axis: "step", range: null };
    /** @type {Extent} */
    this.xRange = [0, 1];
    /** @type {Extent} */
    this.yRange = [0, 1];
    /** @type {any} */
    this.plot = null;
    this.isFollowing = false;
    this.table = make("div", { class: "chart-values", hidden: true });
    frame.tabIndex = 0;
    frame.addEventListener("keydown", (event) => this.moveByKey(event));
    frame.addEventListener("blur", () => this.hover(null));
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(frame);
    frame.chart = this;
  }

  /**
   * Draw curves, each `{ name, x, y, colour, dash, width, opacity, dots, hidden }`, with ascending positions `x`; `hidden` curves
   * have no row in the table of values. `view` is `{ axis, log, logX, clip, range, marks }`.
   *
   * @param {Curve[]} curves
   * @param {DrawnView} view
   */
  show(curves, view) {
    this.curves = curves;
    this.view = view;
    this.xRange = view.range ?? positionRange(curves, view.logX) ?? positionRange(curves) ?? [0, 1];
    this.isLogX = Boolean(view.logX) && this.xRange[0] > 0;
    this.yRange = valueRange(curves.flatMap(withBand), view);
    const form = `${view.axis} ${this.isLogX}`;
    if (this.form !== form) this.create(form);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: this.xRange[0], max: this.xRange[1] });
      this.plot.redraw(false, true); // within the batch, so that the curves are painted once
    });
    if (this.hovered !== undefined && this.hovered !== null) this.showValues(this.hovered);
  }

  /** Draw again in other colours. */
  restyle() {
    this.form = null;
  }

  /**
   * Show the values at a position, as when the pointer is there; null hides them.
   *
   * @param {number | null} position
   */
  hover(position) {
    if (!this.plot) return;
    const isShown = position !== null && !(this.isLogX && position <= 0);
    this.isFollowing = true;
    this.plot.setCursor({ left: isShown ? this.plot.valToPos(position, "x") : -10, top: isShown ? 0 : -10 }, false);
    this.isFollowing = false;
    /** @type {number | null | undefined} */
    this.hovered = position;
    if (this.frame.contains(document.activeElement) && position !== null) this.showValues(position);
    else this.table.hidden = true;
  }

  size() {
    return { width: Math.max(80, this.frame.clientWidth), height: Math.max(60, this.frame.clientHeight) };
  }

  /** @param {string} form */
  create(form) {
    this.plot?.destroy();
    this.form = form;
    const { axis } = this.view;
    const style = {
      stroke: colour("soft"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    };
    const { labels, distances } = POSITIONS[axis];
    this.frame.replaceChildren(this.table);
    this.plot = new window.uPlot(
      {
        ...this.size(),
        scales: {
          x: { time: axis === "time", distr: this.isLogX ? 3 : 1, range: () => this.xRange },
          y: { range: () => [0, 1] }, // a fraction of the range: uPlot has no labels for values from 1e17 on
        },
        axes: [
          {
            ...style,
            space: 70,
            size: axis === "time" ? 40 : 26,
            ...(distances && { incrs: distances }),
            ...(labels && { values: (/** @type {any[]} */ ...[, splits, , , increment]) => labels(splits, increment) }),
            ...(this.isLogX && {
              splits: () => logTicks(this.xRange),
              filter: (/** @type {any[]} */ ...[, splits]) => splits,
            }),
          },
          {
            ...style,
            size: VALUE_AXIS_WIDTH,
            splits: () => this.valueTicks().map(this.fractions("y")),
            values: () => valueLabels(this.valueTicks()),
          },
        ],
        series: [{}],
        legend: { show: false },
        padding: [8, SIDE, 0, 0],
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          move: (/** @type {any[]} */ ...[, left, top]) => [this.snapped(left), top],
          bind: { dblclick: () => () => this.onZoom(null) },
        },
        hooks: { draw: [() => this.paint()], setCursor: [() => this.follow()], setSelect: [() => this.select()] },
      },
      [[]],
      this.frame,
    );
    this.frame.append(this.table);
  }

  /** The values that have a label. */
  valueTicks() {
    return this.view.log
      ? logTicks(this.yRange)
      : linearTicks(this.yRange, Math.max(2, Math.floor((this.plot.height - 40) / VALUE_SPACE)));
  }

  // -- drawing ---------------------------------------------------------------------------------------------------------

  paint() {
    const { ctx, bbox } = this.plot;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { x, kind } of this.view.marks ?? []) this.paintMark(ctx, this.plot.valToPos(x, "x", true), kind, ratio);
    ctx.lineJoin = "round";
    for (const curve of this.curves) this.paintCurve(ctx, curve, ratio);
    ctx.restore();
  }

  /**
   * @param {CanvasRenderingContext2D} ctx
   * @param {number} left
   * @param {MarkKind} kind
   * @param {number} ratio
   */
  paintMark(ctx, left, kind, ratio) {
    const { bbox } = this.plot;
    ctx.strokeStyle = colour(MARK_COLOURS[kind]);
    ctx.lineWidth = (kind === "checkpoint" ? 1 : 1.6) * ratio;
    ctx.setLineDash(DASHES[kind].map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
  }

  /**
   * Draw the part of a curve within the range; a value that is not finite interrupts the line.
   *
   * @param {CanvasRenderingContext2D} ctx
   * @param {Curve} curve
   * @param {number} ratio
   */
  paintCurve(ctx, curve, ratio) {
    const { x, y } = curve;
    const first = Math.max(0, firstAfter(x, this.xRange[0]) - 1);
    const end = Math.min(x.length, firstAfter(x, this.xRange[1], true) + 1);
    const [across, down] = [this.transform("x"), this.transform("y")];
    ctx.globalAlpha = curve.opacity ?? 1;
    ctx.strokeStyle = ctx.fillStyle = curve.colour;
    ctx.lineWidth = (curve.width ?? 1.6) * ratio;
    ctx.setLineDash((curve.dash ?? []).map((length) => length * ratio));
    if (curve.band)
      paintBand(
        ctx,
        x.slice(first, end).map(across),
        curve.band.map((edge) => edge.slice(first, end).map(down)),
      );
    ctx.beginPath();
    let isDown = false;
    for (let i = first; i < end; i += 1) {
      const top = down(y[i]);
      if (!Number.isFinite(top)) {
        isDown = false;
        continue;
      }
      if (isDown) ctx.lineTo(across(x[i]), top);
      else ctx.moveTo(across(x[i]), top);
      isDown = true;
    }
    ctx.stroke();
    if (curve.dots)
      for (let i = first; i < end; i += 1)
        if (Number.isFinite(down(y[i]))) dot(ctx, across(x[i]), down(y[i]), 2.6 * ratio);
    ctx.globalAlpha = 1;
  }

  /**
   * A function from the values of a scale to pixels of the canvas; faster than `valToPos` for each point.
   *
   * @param {"x" | "y"} scale
   * @returns {(value: number) => number}
   */
  transform(scale) {
    const { bbox } = this.plot;
    const fraction = this.fractions(scale);
    if (scale === "x") return (value) => bbox.left + fraction(value) * bbox.width;
    return (value) => bbox.top + (1 - fraction(value)) * bbox.height;
  }

  /**
   * A function from the values of a scale to the fraction of its range that is below them.
   *
   * @param {"x" | "y"} scale
   * @returns {(value: number) => number}
   */
  fractions(scale) {
    const isLogarithmic = scale === "x" ? this.isLogX : this.view.log;
    const map = (/** @type {number} */ value) => (!isLogarithmic ? value : value > 0 ? Math.log10(value) : NaN);
    const [low, high] = (scale === "x" ? this.xRange : this.yRange).map(map);
    return (value) => (map(value) - low) / (high - low);
  }

  // -- pointer and keyboard --------------------------------------------------------------------------------------------

  select() {
    const { select } = this.plot;
    if (select.width < 3) return;
    const [from, to] = [select.left, select.left + select.width].map((left) => this.plot.posToVal(left, "x"));
    this.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.onZoom([from, to]);
  }

  /**
   * The place of the visible point that is nearest to the pointer, where its line is drawn; the pointer's own while a range is selected.
   *
   * @param {number} left
   */
  snapped(left) {
    /** @type {number | null} */
    this.snap = null;
    if (this.isFollowing || left < 0 || this.plot.cursor.event?.type !== "mousemove" || this.plot.cursor.event.buttons)
      return left;
    this.snap = nearestPosition(
      this.curves.filter((curve) => !curve.hidden),
      this.plot.posToVal(left, "x"),
      this.xRange,
    );
    return this.snap === null ? left : this.plot.valToPos(this.snap, "x");
  }

  follow() {
    if (this.isFollowing) return;
    const { left } = this.plot.cursor;
    const position = left < 0 ? null : (this.snap ?? this.plot.posToVal(left, "x"));
    this.hovered = position;
    if (position === null) this.table.hidden = true;
    else this.showValues(position);
    this.onHover(position, position === null ? null : this.nearestRun(position));
  }

  /**
   * The run whose curve is nearest to the pointer; null if none is near.
   *
   * @param {number} position
   */
  nearestRun(position) {
    const down = this.transform("y");
    const ratio = devicePixelRatio || 1;
    const top = (this.plot.cursor.top ?? 0) * ratio + this.plot.bbox.top;
    let least = NEAR * ratio;
    /** @type {string | null} */
    let run = null;
    for (const curve of this.curves) {
      if (curve.hidden || curve.run === undefined || !curve.x.length) continue;
      const distance = Math.abs(down(curve.y[nearestPoint(curve.x, position)]) - top);
      if (distance < least) [least, run] = [distance, curve.run];
    }
    return run;
  }

  /** @param {KeyboardEvent} event */
  moveByKey(event) {
    const shown = this.curves.filter((curve) => !curve.hidden && curve.x.length);
    if (
      !shown.length ||
      event.target !== this.frame ||
      !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)
    )
      return;
    event.preventDefault();
    if (event.key === "Escape") {
      this.hover(null);
      this.onHover(null);
      return;
    }
    const { x } = shown.reduce((one, other) => (other.x.length > one.x.length ? other : one));
    const current = nearestPoint(x, this.hovered ?? this.xRange[1]);
    const index = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0 }[event.key] ?? x.length - 1;
    const position = x[Math.max(0, Math.min(x.length - 1, index))];
    this.hover(position);
    this.onHover(position);
  }

  /**
   * The point of each curve nearest to a position: `{ name, colour, dash, x, value }`, those nearest to the pointer first if many.
   *
   * @param {number} position
   */
  valuesAt(position) {
    const rows = this.curves
      .filter((curve) => !curve.hidden)
      .map(({ name, colour: shade, dash, x, y }) => {
        const index = nearestPoint(x, position);
        return { name, colour: shade, dash, x: x[index], value: y[index] };
      })
      .filter(({ value }) => value !== undefined);
    if (rows.length <= MAX_ROWS) return rows;
    const down = this.transform("y");
    const top = (this.plot.cursor.top ?? 0) * (devicePixelRatio || 1) + this.plot.bbox.top;
    return rows.sort((one, other) => Math.abs(down(one.value) - top) - Math.abs(down(other.value) - top));
  }

  /** @param {number} position */
  showValues(position) {
    const rows = this.valuesAt(position);
    const shown = rows.slice(0, MAX_ROWS);
    this.table.hidden = !shown.length;
    if (!shown.length) return;
    const { text } = POSITIONS[this.view.axis];
    const at = (/** @type {number} */ x) => (text(x) === text(position) ? null : make("small", { text: text(x) })); // of a curve without a point there
    this.table.replaceChildren(
      make("strong", { text: text(position) }),
      ...shown.map((row) =>
        make(
          "div",
          {},
          make("i", { class: "swatch", style: `background:${sample(row)}` }),
          make("span", { text: row.name }),
          at(row.x),
          make("b", { text: number(row.value) }),
        ),
      ),
      rows.length > shown.length ? make("small", { text: `and ${rows.length - shown.length} more` }) : "",
    );
    const left = this.plot.valToPos(position, "x") + VALUE_AXIS_WIDTH;
    const isRight = left > this.frame.clientWidth / 2;
    const room = (isRight ? left : this.frame.clientWidth - left) - 12;
    this.table.style.maxWidth = `${Math.min(0.75 * this.frame.clientWidth, room)}px`;
    // A transform moves nothing else, so that browsers count no layout shift.
    this.table.style.transform = `translateX(${isRight ? `calc(${left - 12}px - 100%)` : `${left + 12}px`})`;
  }
}

/**
 * A curve, and the edges of its band.
 *
 * @param {Curve} curve
 */
const withBand = (curve) => [curve, ...(curve.band ?? []).map((y) => ({ x: curve.x, y }))];

/**
 * Fill the band between two edges; on a logarithmic axis, a lower edge that is not positive ends at the upper one.
 *
 * @param {CanvasRenderingContext2D} ctx
 * @param {number[]} lefts
 * @param {number[][]} edges
 */
function paintBand(ctx, lefts, [low, high]) {
  const at = [...lefts.keys()].filter((n) => Number.isFinite(high[n]));
  const { globalAlpha } = ctx;
  ctx.globalAlpha = 0.16;
  ctx.beginPath();
  for (const n of at) ctx.lineTo(lefts[n], high[n]);
  for (const n of at.toReversed()) ctx.lineTo(lefts[n], Number.isFinite(low[n]) ? low[n] : high[n]);
  ctx.fill();
  ctx.globalAlpha = globalAlpha;
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} left
 * @param {number} top
 * @param {number} radius
 */
function dot(ctx, left, top, radius) {
  ctx.beginPath();
  ctx.arc(left, top, radius, 0, 2 * Math.PI);
  ctx.fill();
}
