// Groups of jobs by the values of fields: their order, and mean and deviation of each column. Pure functions.

import { asNumber, number } from "./format.js";

export const GROUP = "group:"; // begins the ids of the rows of groups

/**
 * The groups of jobs in their order: `{ id, values, jobs }` with a value of each column, ordered as their first jobs are.
 *
 * @param {Row[]} jobs
 * @param {Column[]} columns
 * @returns {Group[]}
 */
export function groupsOf(jobs, columns) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const job of jobs) {
    const values = columns.map((column) => column.valueOf(job) ?? null);
    const id = `${GROUP}${JSON.stringify(values)}`;
    const group = groups.get(id) ?? { id, values, jobs: [] };
    groups.set(id, group);
    group.jobs.push(job);
  }
  return [...groups.values()];
}

/**
 * The ids of all rows: each group, and below it its jobs unless it is closed.
 *
 * @param {Group[]} groups
 * @param {Set<string>} closed
 */
export const rowsOf = (groups, closed) =>
  groups.flatMap(({ id, jobs }) => [id, ...(closed.has(id) ? [] : jobs.map((job) => job.id))]);

/**
 * Mean and sample standard deviation of the finite numbers; null without one.
 *
 * @param {MetricValue[]} values
 */
export function meanAndDeviation(values) {
  const numbers = values.map(asNumber).filter(Number.isFinite);
  if (!numbers.length) return null;
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  const squares = numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return {
    mean,
    deviation: numbers.length > 1 ? Math.sqrt(squares / (numbers.length - 1)) : null,
    count: numbers.length,
  };
}

/**
 * Whether the numbers of a group differ, so that their mean is shown.
 *
 * @param {any[]} values
 */
export const isAveraged = (values) => new Set(present(values)).size > 1 && present(values).every(isNumber);

/**
 * The text of a column in the row of a group, with more digits, and what it is.
 *
 * @param {any[]} values
 * @param {(value: number, digits?: number) => string} format
 */
export function groupTitle(values, format = number) {
  const known = present(values);
  if (!known.length) return "";
  const jobs = `${known.length === values.length ? "" : `${known.length} of `}${values.length} ${values.length === 1 ? "job" : "jobs"}`;
  if (isAveraged(values))
    return `${groupText(values, (value) => format(value, 8))}: mean ± sample standard deviation of ${jobs}`;
  return new Set(known).size === 1 ? `${known[0]}: the value of ${jobs}` : `Different values of ${jobs}`;
}

/** @param {any[]} values */
const present = (values) => values.filter((value) => value !== null && value !== undefined);

/** @param {unknown} value */
const isNumber = (value) => typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(String(value));

/**
 * The text of a column in the row of a group: `0.512 ± 0.03`, the one value that all jobs have that have any, or how many differ.
 * `format` shows a number.
 *
 * @param {any[]} values
 * @param {(value: number, digits?: number) => string} format
 */
export function groupText(values, format = number) {
  const known = present(values);
  const distinct = new Set(known);
  if (!known.length) return "";
  if (distinct.size === 1) return typeof known[0] === "number" ? format(known[0]) : String(known[0]);
  const statistics = known.every(isNumber) ? meanAndDeviation(known) : null;
  if (!statistics) return `${distinct.size} values`;
  // A narrow cell has the deviation in a second line.
  const texts = [format(statistics.mean), ...(statistics.deviation === null ? [] : [format(statistics.deviation, 2)])];
  return texts.map((text) => text.replaceAll(" ", "\u00a0")).join(" ±\u00a0");
}
