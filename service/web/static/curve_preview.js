// Curves as SVG: the sparklines of the table.

import { asNumber } from "./format.js";

const SPARKLINE = { left: 1, right: 79, top: 2, bottom: 18 };

/**
 * The smallest and largest step and value of points.
 *
 * @param {[number, number][]} points
 * @returns {[number, number, number, number]}
 */
function extent(points) {
  const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
  return [Math.min(...steps), Math.max(...steps), Math.min(...values), Math.max(...values)];
}

/**
 * The path of a line through `[step, value]` points that fills a box; a constant line is in the middle.
 *
 * @param {[number, number][]} points
 * @param {{ left: number, right: number, top: number, bottom: number }} box
 */
export function linePath(points, box, [first, last, low, high] = extent(points)) {
  const x = (/** @type {number} */ step) =>
    box.left + ((step - first) / Math.max(1, last - first)) * (box.right - box.left);
  const y = (/** @type {number} */ value) =>
    box.top + (high > low ? (high - value) / (high - low) : 0.5) * (box.bottom - box.top);
  return `M${points.map(([step, value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`;
}

/**
 * @param {number[]} steps
 * @param {MetricValue[]} values
 * @returns {[number, number][]}
 */
const finitePoints = (steps, values) =>
  steps
    .map((step, i) => /** @type {Extent} */ ([step, asNumber(values[i])]))
    .filter(([, value]) => Number.isFinite(value));

/**
 * The path of a sparkline in a box of 80 by 20; empty for fewer than two finite values.
 *
 * @param {MetricValue[]} values
 */
export function sparklinePath(values) {
  const points = finitePoints([...values.keys()], values).map(([, value], i) => /** @type {Extent} */ ([i, value]));
  return points.length < 2 ? "" : linePath(points, SPARKLINE);
}
