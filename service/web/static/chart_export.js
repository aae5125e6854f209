// A chart as a file: PNG, SVG or CSV.

import { firstAfter, linearTicks, logTicks } from "./chart_axes.js";
import { colour } from "./colours.js";
import { number } from "./format.js";
import { makeSvg, within } from "./page.js";

const [WIDTH, HEIGHT] = [960, 480];
const BOX = { left: 70, right: WIDTH - 20, top: 40, bottom: HEIGHT - 40 };

/**
 * Offer a file to the reader.
 *
 * @param {string} name
 * @param {Blob} blob
 */
function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replaceAll(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * @param {Chart} chart
 * @param {string} title
 */
const heading = (chart, title) => (chart.view.log ? `${title} (log)` : title);

/**
 * Save what is on a chart's canvas, with its title.
 *
 * @param {Chart} chart
 * @param {string} title
 */
export function savePng(chart, title) {
  const canvas = within(chart.frame, "canvas", HTMLCanvasElement);
  const ratio = devicePixelRatio || 1;
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height + 28 * ratio];
  const context = /** @type {CanvasRenderingContext2D} */ (copy.getContext("2d"));
  context.fillStyle = colour("surface");
  context.fillRect(0, 0, copy.width, copy.height);
  context.fillStyle = colour("text");
  context.font = `600 ${14 * ratio}px system-ui, sans-serif`;
  context.fillText(heading(chart, title), 12 * ratio, 20 * ratio);
  context.drawImage(canvas, 0, 28 * ratio);
  copy.toBlob((blob) => blob && save(`${title}.png`, blob));
}

/**
 * Save the curves of a chart as a table with a line for each position.
 *
 * @param {Chart} chart
 * @param {string} title
 */
export function saveCsv(chart, title) {
  const shown = chart.curves.filter((curve) => !curve.hidden);
  const rows = new Map();
  shown.forEach(({ x, y }, n) =>
    x.forEach((position, i) => {
      if (!rows.has(position)) rows.set(position, Array(shown.length).fill(""));
      rows.get(position)[n] = y[i];
    }),
  );
  const header = [chart.view.axis, ...shown.map((curve) => curve.name)];
  const lines = [...rows].sort(([one], [other]) => one - other).map(([position, values]) => [position, ...values]);
  save(
    `${title}.csv`,
    new Blob([[header, ...lines].map((line) => line.map(field).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" }),
  );
}

/**
 * A field of CSV. Text that a spreadsheet would compute is quoted with a leading apostrophe.
 *
 * @param {string | number} value
 */
function field(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * Save a chart as a drawing that can be scaled.
 *
 * @param {Chart} chart
 * @param {string} title
 */
export function saveSvg(chart, title) {
  const image = drawing(chart, title);
  const text = new XMLSerializer().serializeToString(image);
  save(`${title}.svg`, new Blob([text], { type: "image/svg+xml" }));
}

/**
 * @param {Chart} chart
 * @param {string} title
 */
function drawing(chart, title) {
  const {
    xRange,
    yRange,
    isLogX,
    view: { log },
  } = chart;
  const [left, top] = [chart.fractions("x"), chart.fractions("y")];
  const across = (/** @type {number} */ x) => BOX.left + left(x) * (BOX.right - BOX.left);
  const down = (/** @type {number} */ y) => BOX.bottom - top(y) * (BOX.bottom - BOX.top);
  /**
   * @param {string} content
   * @param {Record<string, string | number>} attributes
   */
  const text = (content, attributes) =>
    makeSvg("text", { "font-family": "sans-serif", "font-size": 12, fill: colour("text"), ...attributes }, content);
  const line = (/** @type {Record<string, number>} */ attributes) =>
    makeSvg("line", { stroke: colour("line"), ...attributes });
  const times = view(chart);
  return makeSvg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT },
    makeSvg("rect", { width: WIDTH, height: HEIGHT, fill: colour("surface") }),
    makeSvg(
      "clipPath",
      { id: "box" },
      makeSvg("rect", { x: BOX.left, y: BOX.top, width: BOX.right - BOX.left, height: BOX.bottom - BOX.top }),
    ),
    text(heading(chart, title), { x: 12, y: 22, "font-size": 15, "font-weight": 600 }),
    ...(log ? logTicks(yRange) : linearTicks(yRange)).flatMap((value) => [
      line({ x1: BOX.left, x2: BOX.right, y1: down(value), y2: down(value) }),
      text(number(value), { x: BOX.left - 6, y: down(value) + 4, "text-anchor": "end" }),
    ]),
    ...(isLogX ? logTicks : linearTicks)(xRange).map((value) =>
      text(times(value), { x: across(value), y: BOX.bottom + 18, "text-anchor": "middle" }),
    ),
    makeSvg(
      "g",
      { "clip-path": "url(#box)", fill: "none", "stroke-width": 1.6 },
      ...chart.curves.map((curve) =>
        makeSvg(
          "path",
          {
            d: path(curve, chart, across, down),
            stroke: curve.colour,
            "stroke-dasharray": (curve.dash ?? []).join(" "),
            opacity: curve.opacity ?? 1,
          },
          makeSvg("title", {}, curve.name),
        ),
      ),
    ),
  );
}

/**
 * @param {Chart} chart
 * @returns {(value: number) => string}
 */
const view = (chart) =>
  chart.view.axis === "time" ? (value) => new Date(value * 1000).toLocaleTimeString() : (value) => number(value, 6);

/**
 * @param {Curve} curve
 * @param {Chart} chart
 * @param {(x: number) => number} across
 * @param {(y: number) => number} down
 */
function path({ x, y }, { xRange }, across, down) {
  let command = "M";
  const parts = [];
  const [first, end] = [
    Math.max(0, firstAfter(x, xRange[0]) - 1),
    Math.min(x.length, firstAfter(x, xRange[1], true) + 1),
  ];
  for (let i = first; i < end; i += 1) {
    if (!Number.isFinite(across(x[i])) || !Number.isFinite(down(y[i]))) {
      command = "M";
      continue;
    }
    parts.push(`${command}${across(x[i]).toFixed(1)} ${down(y[i]).toFixed(1)}`);
    command = "L";
  }
  return parts.join("");
}
