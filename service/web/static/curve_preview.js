// Curves as SVG: the sparklines of the table, and the previews of charts until Plotly is loaded.

import { asNumber, count, number } from "./format.js";
import { make, makeSvg } from "./page.js";

const SPARKLINE = { left: 1, right: 79, top: 2, bottom: 18 };

/** The smallest and largest step and value of points. */
function extent(points) {
  const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
  return [Math.min(...steps), Math.max(...steps), Math.min(...values), Math.max(...values)];
}

/** The path of a line through `[step, value]` points that fills a box; a constant line is in the middle. */
export function linePath(points, box, [first, last, low, high] = extent(points)) {
  const x = (step) => box.left + ((step - first) / Math.max(1, last - first)) * (box.right - box.left);
  const y = (value) => box.top + (high > low ? (high - value) / (high - low) : 0.5) * (box.bottom - box.top);
  return `M${points.map(([step, value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`;
}

const finitePoints = (steps, values) =>
  steps.map((step, i) => [step, asNumber(values[i])]).filter(([, value]) => Number.isFinite(value));

/** The path of a sparkline in a box of 80 by 20; empty for fewer than two finite values. */
export function sparklinePath(values) {
  const points = finitePoints([...values.keys()], values).map(([, value], i) => [i, value]);
  return points.length < 2 ? "" : linePath(points, SPARKLINE);
}

/** Draw curves, each `{ steps, values, colour }`, into a frame, with the ends of both axes; nothing below two points. */
export function showPreview(frame, curves, title) {
  const lines = curves.map(({ steps, values }) => finitePoints(steps, values));
  const points = lines.flat();
  if (points.length < 2) return;
  const ends = extent(points);
  const [width, height] = [frame.clientWidth || 640, frame.clientHeight || 240];
  const box = { left: 56, right: width - 8, top: 8, bottom: height - 30 };
  frame.replaceChildren(
    makeSvg("svg", { class: "preview", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
      makeSvg("path", { class: "axis", d: `M${box.left} ${box.top}V${height - 22}H${box.right}` }),
      ...lines.flatMap((line, n) => (line.length < 2 ? [] : [makeSvg("path", { class: "line", d: linePath(line, box, ends), style: `stroke:${curves[n].colour}` })]))),
    ...Object.entries({ first: count(ends[0]), last: count(ends[1]), low: number(ends[2]), high: number(ends[3]) })
      .map(([name, text]) => make("span", { class: `end ${name}`, text })));
}
