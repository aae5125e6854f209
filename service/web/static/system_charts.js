// The charts of what nodes, ranks and GPUs use: `system/node-0/cpu_percent`, `system/rank-3/rss_bytes`,
// `system/node-0/gpu-1/power_watts`. Pure functions.

import { GIBI, MEBI_PER_SECOND } from "./format.js";

export const SYSTEM = "System";
const PREFIX = /^system\/(?:node|rank)-/;
const NAME = /^system\/(?:(node-\d+)\/(gpu-\d+)|(node-\d+)|(rank-\d+))\/([a-z_]+)$/;
// By quantity: its title, and its unit; in the order of the charts.
/** @type {Map<string, [string, Partial<ChartDefinition>]>} */
const QUANTITIES = new Map(
  Object.entries({
    utilization_percent: ["GPU utilisation", { unit: "%" }],
    "gpu memory_used_bytes": ["GPU memory", { ...GIBI, fromZero: true }],
    power_watts: ["GPU power", { unit: "W" }],
    temperature_celsius: ["GPU temperature", { unit: "°C" }],
    sm_clock_mhz: ["SM clock", { unit: "MHz" }],
    processes: ["Processes on GPUs", {}],
    throttled_power: ["Throttled by power", {}],
    throttled_thermal: ["Throttled by heat", {}],
    throttled_hardware: ["Throttled by hardware", {}],
    throttled_sync: ["Throttled by a synced clock", {}],
    ecc_corrected_errors: ["Corrected ECC errors", {}],
    ecc_uncorrected_errors: ["Uncorrected ECC errors", {}],
    "node cpu_percent": ["CPU of the nodes", { unit: "%" }],
    "rank cpu_percent": ["CPU of the ranks", { unit: "%", note: "100 % is one processor" }],
    "node memory_used_bytes": ["Memory of the nodes", { ...GIBI, fromZero: true }],
    "rank rss_bytes": ["Memory of the ranks", { ...GIBI, fromZero: true }],
    network_received_bytes_per_second: ["Network, received", MEBI_PER_SECOND],
    network_sent_bytes_per_second: ["Network, sent", MEBI_PER_SECOND],
    disk_used_bytes: ["Disk of the runs, used", GIBI],
    disk_free_bytes: ["Disk of the runs, free", GIBI],
  }),
);
const NOT_CHARTED = ["memory_total_bytes", "idle_gpus"];

/**
 * Whether a metric is of the system. Its steps only count readings, so that it is drawn by its times.
 *
 * @param {string} key
 */
export const isSystem = (key) => PREFIX.test(key);

/**
 * The charts of the system's metrics among `keys`, made by `chart` of chart_list.js.
 *
 * @param {string[]} keys
 * @param {ChartMaker} chart
 */
export function systemCharts(keys, chart) {
  /** @type {Map<string, string[]>} */
  const groups = new Map([...QUANTITIES.keys()].map((name) => [name, []]));
  for (const key of keys.filter(isSystem)) {
    const [, , gpu, node, , quantity = null] = NAME.exec(key) ?? [];
    if (quantity && NOT_CHARTED.includes(quantity)) continue;
    const kind = gpu ? "gpu" : node ? "node" : "rank";
    const name =
      quantity === null ? key : ([`${kind} ${quantity}`, quantity].find((one) => QUANTITIES.has(one)) ?? key);
    groups.set(name, [...(groups.get(name) ?? []), key]);
  }
  return [...groups]
    .filter(([, members]) => members.length)
    .map(([name, members]) => {
      const [title, options] = QUANTITIES.get(name) ?? [name, {}];
      return chart(`system-${name.replaceAll(/[ /]/g, "-")}`, title, members, { ...options, section: SYSTEM });
    });
}

/**
 * The name of a curve: `node 0`, `rank 3`, `node 0, GPU 1`.
 *
 * @param {string} key
 */
export function systemName(key) {
  const match = NAME.exec(key);
  if (!match) return key;
  const [, ofGpu, gpu, node, rank] = match;
  return gpu ? `${ofGpu}, ${gpu.replace("gpu", "GPU")}`.replaceAll("-", " ") : (node ?? rank).replace("-", " ");
}

/** @type {WeakMap<Points, number[]>} */
const knownTimes = new WeakMap();

/**
 * The times of a series in milliseconds; parsed once.
 *
 * @param {Points} series
 */
function timesOf(series) {
  const known = knownTimes.get(series);
  if (known?.length === series.times.length) return known;
  const times = series.times.map(Date.parse);
  knownTimes.set(series, times);
  return times;
}

/**
 * The series at the steps that the training had reached at its times, by another series; itself if there is none.
 *
 * @param {Points} series
 * @param {Points | undefined} reference
 * @returns {Points}
 */
export function atSteps(series, reference) {
  if (!reference?.steps.length) return series;
  const known = timesOf(reference);
  let at = 0;
  const steps = timesOf(series).map((time) => {
    while (at < known.length - 1 && known[at + 1] <= time) at += 1;
    while (at > 0 && known[at] > time) at -= 1;
    if (at === known.length - 1 || known[at] > time) return reference.steps[at];
    const part = (time - known[at]) / (known[at + 1] - known[at] || 1);
    return reference.steps[at] + part * (reference.steps[at + 1] - reference.steps[at]);
  });
  return { ...series, steps };
}
