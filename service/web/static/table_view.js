// What a reader chose for the table of jobs: query, order, columns, grouping. It is stored in the address, so that a link
// shows the same table, and in saved views.

import { setParameters } from "./address.js";

/**
 * The columns of a view that names none: after the loss, the metric of the evaluations if there is one.
 *
 * @param {string | null} evaluation
 */
export const defaultColumns = (evaluation) => [
  "status",
  "name",
  "progress",
  "loss",
  ...(evaluation ? [evaluation] : []),
  "gpus",
  "strategy",
  "owner",
  "age",
];
const FILTERS = ["status", "search", "created_by", "sweep", "archived"];
const MAX_COLUMNS = 60;
/** Selected jobs that the address has. */
export const MAX_SELECTED = 20;
const [NARROWEST, WIDEST] = [50, 900]; // pixels

/**
 * The view in an address's parameters. What is not valid has its default. `evaluation` is the metric of the jobs' evaluations.
 *
 * @param {URLSearchParams} parameters
 * @param {string | null} evaluation
 * @returns {TableView}
 */
export function readTableView(parameters, evaluation = null) {
  const columns = [...new Set(parameters.getAll("columns"))].slice(0, MAX_COLUMNS);
  const widths = parameters
    .getAll("width")
    .map(
      (text) =>
        /** @type {[string, number]} */ ([
          text.slice(0, text.lastIndexOf(":")),
          Number(text.slice(text.lastIndexOf(":") + 1)),
        ]),
    );
  return {
    where: parameters.get("where") ?? "",
    sort: sortOf(parameters.get("sort") ?? ""),
    columns: columns.length ? columns : defaultColumns(evaluation),
    evaluation,
    fixed: parameters.getAll("fix"),
    widths: Object.fromEntries(widths.filter(([, width]) => width >= NARROWEST && width <= WIDEST)),
    group: parameters.get("group") ?? "",
    selected: parameters.getAll("job").slice(0, MAX_SELECTED),
    charts: parameters.get("charts") !== "no",
  };
}

/**
 * The order in an address; links to releases before the query language end its key with `:asc` or `:desc`.
 *
 * @param {string} text
 */
function sortOf(text) {
  const [, key, direction] = /^(.*):(asc|desc)$/.exec(text) ?? [];
  return key ? `${direction === "desc" ? "-" : ""}${key}` : text;
}

/**
 * Write a view into an address's parameters; defaults are left out.
 *
 * @param {TableView} view
 * @param {URLSearchParams} parameters
 */
export function writeTableView(view, parameters) {
  const values = {
    where: view.where ? [view.where] : [],
    sort: view.sort ? [view.sort] : [],
    columns: hasDefaultColumns(view) ? [] : view.columns,
    fix: view.fixed,
    width: Object.entries(view.widths).map(([name, width]) => `${name}:${width}`),
    group: view.group ? [view.group] : [],
    job: view.selected,
    charts: view.charts ? [] : ["no"],
  };
  return setParameters(parameters, values);
}

/**
 * The keys that a view groups by. Its text separates them by commas; a comma within a key is doubled.
 *
 * @param {string} text
 */
export const groupKeys = (text) => (text.match(/(?:[^,]|,,)+/g) ?? []).map((key) => key.replaceAll(",,", ","));

/**
 * The text of a grouping with a key more, or without it if it has it.
 *
 * @param {string} text
 * @param {string} key
 */
export function toggledGroup(text, key) {
  const keys = groupKeys(text);
  const changed = keys.includes(key) ? keys.filter((one) => one !== key) : [...keys, key];
  return changed.map((one) => one.replaceAll(",", ",,")).join(",");
}

/**
 * Whether a view has the columns of one that names none.
 *
 * @param {TableView} view
 */
export const hasDefaultColumns = ({ columns, evaluation }) =>
  columns.join("\n") === defaultColumns(evaluation).join("\n");

/**
 * The address's parameters without the query and the filters.
 *
 * @param {URLSearchParams} parameters
 */
export const withoutFilters = (parameters) =>
  new URLSearchParams([...parameters].filter(([name]) => name !== "where" && !isFilter(name)));

/** @param {string} name */
const isFilter = (name) => FILTERS.includes(name) || name.startsWith("metadata[") || name.startsWith("parameters[");

/**
 * The filters beside the query, as the API takes them.
 *
 * @param {URLSearchParams} parameters
 */
export function filtersIn(parameters) {
  const filters = new URLSearchParams();
  for (const [name, value] of parameters) {
    if (value !== "" && isFilter(name)) filters.append(name, value);
  }
  return filters;
}

/**
 * A width within the limits of a column.
 *
 * @param {number} width
 */
export const clampWidth = (width) => Math.round(Math.max(NARROWEST, Math.min(WIDEST, width)));

/**
 * Columns with more of them after the name, where they are in sight.
 *
 * @param {string[]} columns
 * @param {string[]} added
 */
export function withAdded(columns, added) {
  const place = columns.indexOf("name") + 1;
  return [...columns.slice(0, place), ...added, ...columns.slice(place)];
}

/**
 * Columns with `name` moved by some positions.
 *
 * @param {string[]} columns
 * @param {string} name
 * @param {number} by
 */
export function moved(columns, name, by) {
  const from = columns.indexOf(name);
  const rest = columns.filter((one) => one !== name);
  rest.splice(Math.max(0, Math.min(rest.length, from + by)), 0, name);
  return rest;
}
