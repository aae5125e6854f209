// A file of histograms: one line of JSON for each step, with the edges of its bins and the count in each.

import { count, number } from "./format.js";
import { make, makeSvg, setText } from "./page.js";

const WIDTH = 640;
const HEIGHT = 200;

/** @param {unknown} list */
const areNumbers = (list) => Array.isArray(list) && list.every(Number.isFinite);

/**
 * The histograms in a text by step, `{ step, bins, values }`. Of several of one step the last counts, since a restart repeats steps.
 *
 * @param {string} text
 * @returns {HistogramLine[]}
 */
export function histogramsOf(text) {
  const byStep = new Map();
  for (const line of text.split("\n")) {
    const one = parsed(line);
    if (
      one &&
      areNumbers(one.bins) &&
      areNumbers(one.values) &&
      one.values.length &&
      one.bins.length === one.values.length + 1
    )
      byStep.set(one.step ?? null, one);
  }
  return [...byStep.values()].sort((one, other) => one.step - other.step);
}

/** @param {string} line */
function parsed(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null; // the first line of a part of a file, or NaN
  }
}

/**
 * The elements that show histograms: a slider over their steps, and the bars of one.
 *
 * @param {HistogramLine[]} histograms
 */
export function histogramView(histograms) {
  /** @type {Extent} */
  const widest = [
    Math.min(...histograms.map(({ bins }) => bins[0])),
    Math.max(...histograms.map(({ bins }) => bins.at(-1))),
  ];
  const [chart, caption] = [make("div", { class: "histogram" }), make("p", { class: "hint" })];
  const range = make("input", {
    type: "range",
    min: 0,
    max: histograms.length - 1,
    step: 1,
    value: histograms.length - 1,
    "aria-label": "Step of the histogram",
  });
  const show = () => {
    const one = histograms[Number(range.value)];
    const text = describe(one);
    range.setAttribute("aria-valuetext", text);
    setText(caption, text);
    chart.replaceChildren(bars(one, widest, text));
  };
  range.addEventListener("input", show);
  show();
  const edges = make(
    "div",
    { class: "edges", "aria-hidden": "true" },
    ...widest.map((edge) => make("span", { text: number(edge) })),
  );
  return [...(histograms.length > 1 ? [make("p", { class: "toolbar" }, range)] : []), caption, chart, edges];
}

/** @param {HistogramLine} histogram */
function describe({ step, bins, values }) {
  const total = values.reduce((sum, value) => sum + value, 0);
  const at = step === null || step === undefined ? "" : `Step ${count(step)}: `;
  return `${at}${number(total)} values from ${number(bins[0])} to ${number(bins.at(-1))}, at most ${number(Math.max(...values))} in a bin`;
}

/**
 * Bars of the density, so that bins of different widths are comparable; all steps have one horizontal axis.
 *
 * @param {HistogramLine} histogram
 * @param {Extent} range
 * @param {string} label
 */
function bars({ bins, values }, [least, most], label) {
  const span = most - least || 1;
  const narrowest = span / WIDTH; // a bin without a width has a bar of a pixel
  const widths = values.map((_, n) => Math.max(bins[n + 1] - bins[n], narrowest));
  const heights = values.map((value, n) => value / widths[n]);
  const highest = Math.max(...heights) || 1;
  const rectangles = heights.map((height, n) =>
    makeSvg("rect", {
      x: ((bins[n] - least) / span) * WIDTH,
      width: (widths[n] / span) * WIDTH,
      y: HEIGHT * (1 - height / highest),
      height: (HEIGHT * height) / highest,
    }),
  );
  return makeSvg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...rectangles,
  );
}
