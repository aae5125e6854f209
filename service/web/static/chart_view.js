// What a reader chose for the charts of a page. `toggled` are the sections that are not as the page has them at first. It is stored in the address, so that a link shows the same view.

import { setParameters } from "./address.js";

/** @type {ChartsView} */
const DEFAULTS = {
  axis: "step",
  log: false,
  logX: false,
  logs: [],
  weight: 0,
  clip: false,
  range: null,
  search: "",
  pins: [],
  toggled: [],
  combined: [],
};
const MAX_CHOSEN = 200; // charts and sections in an address
const STORE_DELAY = 200; // milliseconds after the last change

/**
 * Metrics as one text with commas between them, and the metrics of such a text.
 *
 * @param {string[]} keys
 */
export const joinKeys = (keys) => keys.map((key) => key.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
/** @param {string} text */
const splitKeys = (text) =>
  text
    .split(",")
    .filter(Boolean)
    .map((key) => key.replaceAll("%2C", ",").replaceAll("%25", "%"));

/**
 * The view in an address's parameters; `axes` are the axes of the page. What is not valid has its default.
 *
 * @param {URLSearchParams} parameters
 * @param {Axis[]} axes
 * @returns {ChartsView}
 */
export function readView(parameters, axes) {
  const range = (parameters.get("zoom") ?? "").split(":").map(Number);
  const list = (/** @type {string} */ name) => parameters.getAll(name).slice(0, MAX_CHOSEN);
  return {
    axis: axes.find((one) => one === parameters.get("x")) ?? DEFAULTS.axis,
    log: parameters.get("log") === "1",
    logX: parameters.get("log_x") === "1",
    logs: list("log_chart"),
    weight: Math.max(0, Math.min(0.99, Number(parameters.get("smooth")) || 0)),
    clip: parameters.get("clip") === "1",
    range: range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? [range[0], range[1]] : null,
    search: parameters.get("find") ?? "",
    pins: list("pin"),
    toggled: list("section"),
    combined: list("chart")
      .map(splitKeys)
      .filter((keys) => keys.length),
  };
}

/**
 * Write a view into an address's parameters; defaults are left out.
 *
 * @param {ChartsView} view
 * @param {URLSearchParams} parameters
 */
export function writeView(view, parameters) {
  const values = {
    x: view.axis === DEFAULTS.axis ? [] : [view.axis],
    log: view.log ? ["1"] : [],
    log_x: view.logX ? ["1"] : [],
    log_chart: view.logs,
    smooth: view.weight ? [String(view.weight)] : [],
    clip: view.clip ? ["1"] : [],
    zoom: view.range ? [view.range.map((one) => Number(one.toPrecision(12))).join(":")] : [],
    find: view.search ? [view.search] : [],
    pin: view.pins,
    section: view.toggled,
    chart: view.combined.map(joinKeys),
  };
  return setParameters(parameters, values);
}

/** @type {number | undefined} */
let timer;

/**
 * Replace the page's address by one with the view. Browsers ignore more than some changes a second.
 *
 * @param {ChartsView} view
 */
export function storeView(view) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const parameters = writeView(view, new URLSearchParams(location.search)).toString();
    history.replaceState(null, "", `${location.pathname}${parameters ? `?${parameters}` : ""}`);
  }, STORE_DELAY);
}

/**
 * A function that tells whether a title or a metric matches a search: a part of it, or `/a regular expression/`.
 *
 * @param {string} search
 * @returns {(...texts: string[]) => boolean}
 */
export function matcher(search) {
  const expression = /^\/(.+)\/$/.exec(search.trim());
  if (expression) {
    try {
      const pattern = new RegExp(expression[1], "i");
      return (...texts) => texts.some((text) => pattern.test(text));
    } catch {
      return () => false;
    }
  }
  const part = search.trim().toLowerCase();
  return (...texts) => !part || texts.some((text) => text.toLowerCase().includes(part));
}
