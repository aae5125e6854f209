// Which metrics share a chart, with titles and units. Pure functions.

import { joinKeys } from "./chart_view.js";
import { GIBI } from "./format.js";
import { isSystem, systemCharts } from "./system_charts.js";

const LOSSES = ["train/loss", "eval/loss"];
const SET_LOSSES = "eval/loss/";
const RANK_SECONDS = "perf/rank_seconds/";
const NOT_CHARTED = new Set([
  "train/tokens",
  "perf/examples_per_second",
  "perf/tokens_per_second",
  "perf/rank_spread_seconds",
]);

/** Tasks that may run without ever reporting a step. */
export const STEPLESS = ["script", "comm_check"];

const OVERVIEW = "Overview";
const OTHERS = "Metrics"; // without a prefix, or the only one with its prefix
const NATURAL = new Intl.Collator(undefined, { numeric: true });

/**
 * A chart of some metrics, or of those whose names begin with `prefix`; a value times `scale` is in `unit`; the axis may start `fromZero`.
 *
 * @param {string} id
 * @param {string} title
 * @param {string[]} keys
 * @param {Partial<ChartDefinition>} [options]
 * @returns {ChartDefinition}
 */
const chart = (
  id,
  title,
  keys,
  { prefix = "", unit = "", scale = 1, note = "", section = OVERVIEW, fromZero = false } = {},
) => ({ id, title, keys, prefix, unit, scale, note, section, fromZero });

/**
 * The section of a metric that has a chart of its own: its prefix.
 *
 * @param {string} key
 */
const sectionOf = (key) => (key.includes("/") ? key.slice(0, key.indexOf("/")) : OTHERS);

/** @param {string} section */
const stemOf = (section) => section.replaceAll(/\d+/g, "*");

/**
 * Charts with few sections: names that differ only in numbers are one section, `layer*`, and sections of one chart are one.
 *
 * @param {ChartDefinition[]} charts
 */
function inSections(charts) {
  const names = Map.groupBy(new Set(charts.map(({ section }) => section)), stemOf);
  const nameOf = (/** @type {string} */ section) =>
    (names.get(stemOf(section))?.length ?? 0) > 1 ? stemOf(section) : section;
  const sizes = Map.groupBy(charts, ({ section }) => nameOf(section));
  return charts.map((one) => {
    const name = nameOf(one.section);
    return { ...one, section: sizes.get(name)?.length === 1 ? OTHERS : name };
  });
}

const LOSS = chart("loss", "Loss", LOSSES);
const MEMORY_KEYS = ["device_peak_bytes", "device_reserved_bytes", "host_rss_bytes", "host_peak_bytes"].map(
  (name) => `memory/${name}`,
);
const TIME_KEYS = ["step", "data", "forward_backward", "optimizer", "evaluation", "checkpoint_stall"].map(
  (name) => `perf/${name}_seconds`,
);

/**
 * The charts of a job: the standard charts of its task, one for each other metric of `keys`, and those of the system.
 *
 * @param {Record<string, any>} spec
 * @param {string[]} keys
 */
export function chartsOf(spec, keys) {
  const charts = STEPLESS.includes(spec.task)
    ? keys.some((key) => LOSSES.includes(key))
      ? [LOSS]
      : []
    : standardCharts(spec, keys);
  const hidden = charts.length ? NOT_CHARTED : new Set();
  const others = keys.filter(
    (key) =>
      !isSystem(key) && !hidden.has(key) && !key.startsWith(RANK_SECONDS) && !charts.some((one) => includes(one, key)),
  );
  return [...charts, ...inSections(others.sort(NATURAL.compare).map(chartOf)), ...systemCharts(keys, chart)];
}

/**
 * The chart of one metric.
 *
 * @param {string} key
 */
export const chartOf = (key) => chart(`metric-${key}`, key, [key], { section: sectionOf(key) });

/**
 * @param {Record<string, any>} spec
 * @param {string[]} keys
 */
function standardCharts(spec, keys) {
  const unit = keys.includes("perf/tokens_per_second") || spec.task === "causal_lm" ? "tokens" : "examples";
  const gpus = spec.gpus ?? 1;
  return [
    LOSS,
    ...(keys.some((key) => key.startsWith(SET_LOSSES))
      ? [chart("set-losses", "Loss by evaluation set", [], { prefix: SET_LOSSES })]
      : []),
    chart("lr", "Learning rate", ["train/lr"]),
    chart("norm", "Gradient norm", ["train/grad_norm"]),
    chart("speed", "Throughput", [`perf/${unit}_per_second`], { unit: `${unit}/s` }),
    chart("memory", "Memory", MEMORY_KEYS, { ...GIBI, note: "Maximum over ranks", fromZero: true }),
    chart("time", "Step time", TIME_KEYS, { unit: "s" }),
    ...(gpus > 1 && gpus <= 64
      ? [
          chart("ranks", "Time per rank", [], {
            prefix: RANK_SECONDS,
            unit: "s",
            note: "Per-rank compute time, excluding waits for other ranks",
          }),
        ]
      : []),
  ];
}

/**
 * Whether a chart shows a metric.
 *
 * @param {{ keys: string[], prefix: string }} one
 * @param {string} key
 */
export const includes = (one, key) => one.keys.includes(key) || (one.prefix !== "" && key.startsWith(one.prefix));

export const COMBINED = "Combined";

/**
 * The charts of several metrics that the reader chose.
 *
 * @param {string[][]} combined
 * @returns {ChartDefinition[]}
 */
export const combinedCharts = (combined) =>
  combined.map((keys) => ({ ...chart(`combined-${joinKeys(keys)}`, keys.join(", "), keys), section: COMBINED }));
