// Ranges and labels of a chart's axes. Pure functions.

import { count, number, duration } from "./format.js";

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const CLIPPED = 0.02; // the share of values at each end that is outside of the range when outliers are clipped
const MIN_CLIPPED = 20; // values below which none is an outlier

/**
 * The labels of positions on an axis of steps, epochs or tokens, `increment` apart.
 *
 * @param {number[]} splits
 * @param {number} increment
 */
export const countLabels = (splits, increment) =>
  splits.map((value) => (increment >= 1000 || value < 1000 ? COMPACT.format(value) : count(Math.round(value))));

/**
 * The labels of positions on an axis of seconds.
 *
 * @param {number[]} splits
 */
export const secondLabels = (splits) => splits.map((value) => (value ? duration(value) : "0"));

/**
 * The labels of values that are equally far apart, with as many digits as differ, and at least four.
 *
 * @param {number[]} splits
 */
export function valueLabels(splits) {
  const largest = Math.max(...splits.map(Math.abs));
  const apart = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : 0;
  const digits = apart && largest ? Math.floor(Math.log10(largest)) - Math.floor(Math.log10(apart)) + 1 : 0;
  return splits.map((value) => number(value, Math.min(12, Math.max(4, digits))));
}

/** Distances of labels on an axis of whole numbers. */
export const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

/** Distances of labels on an axis of seconds. */
export const SECONDS = [
  0.001,
  0.002,
  0.005,
  0.01,
  0.02,
  0.05,
  0.1,
  0.2,
  0.5,
  ...[1, 60].flatMap((unit) => [1, 2, 5, 10, 15, 30].map((factor) => factor * unit)),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((days) => days * 86400),
];

/**
 * At most about `count` round values within a range.
 *
 * @param {Extent} range
 */
export function linearTicks([low, high], count = 5) {
  const rough = (high - low) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5].find((one) => one * size >= rough) ?? 10) * size;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
}

/**
 * Values for a logarithmic axis: powers of ten, with 2 and 5 times them if there are few, or linear ones within a decade.
 * uPlot's own do not end for some ranges that do not start at a power of ten.
 *
 * @param {Extent} range
 */
export function logTicks([low, high]) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / 8));
  const factors = last - first > 3 ? [1] : [1, 2, 5];
  /** @type {number[]} */
  const values = [];
  for (let power = first; power <= last; power += stride)
    values.push(...factors.map((factor) => Number(`${factor}e${power}`)));
  const within = values.filter((value) => value >= low && value <= high);
  return within.length > 1 ? within : linearTicks([low, high]);
}

/**
 * The smallest and the largest position of all curves, on a logarithmic axis of positive ones; null without a point.
 *
 * @param {{ x: number[] }[]} curves
 * @returns {Extent | null}
 */
export function positionRange(curves, log = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x } of curves) {
    const first = log ? firstAfter(x, 0, true) : 0;
    if (first >= x.length) continue;
    [low, high] = [Math.min(low, x[first]), Math.max(high, x.at(-1))];
  }
  if (!Number.isFinite(low)) return null;
  return low < high ? [low, high] : log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
}

/**
 * The range of the value axis: that of the values whose position is within `range` (null: all), with a margin. A constant
 * curve is in the middle. On a logarithmic axis, values that are not positive do not count; a linear one starts `fromZero`
 * where small changes of a large value would look like large ones.
 *
 * @param {{ x: number[], y: number[] }[]} curves
 * @param {{ range?: Extent | null, log?: boolean, clip?: boolean, fromZero?: boolean }} [options]
 * @returns {Extent}
 */
export function valueRange(curves, { range = null, log = false, clip = false, fromZero = false } = {}) {
  const values = visibleValues(curves, range, log);
  if (!values.length) return log ? [0.1, 10] : [0, 1];
  const [low, high] = clip && values.length >= MIN_CLIPPED ? quantiles(values) : extremes(values);
  if (fromZero && !log && low >= 0 && high > 0) return [0, high * 1.05];
  if (high - low <= Math.abs(high) * 1e-9) {
    const margin = Math.abs(high) / 2 || 1;
    return log ? [low / 2, high * 2] : [low - margin, high + margin];
  }
  if (log) {
    const margin = (high / low) ** 0.05;
    return [low / margin, high * margin];
  }
  const margin = (high - low) / 20;
  return [low - margin, high + margin];
}

/**
 * @param {{ x: number[], y: number[] }[]} curves
 * @param {Extent | null} range
 * @param {boolean} log
 */
function visibleValues(curves, range, log) {
  const values = [];
  for (const { x, y } of curves) {
    const [first, end] = range ? [firstAfter(x, range[0]), firstAfter(x, range[1], true)] : [0, x.length];
    for (let i = first; i < end; i += 1) if (Number.isFinite(y[i]) && (!log || y[i] > 0)) values.push(y[i]);
  }
  return values;
}

/**
 * @param {number[]} values
 * @returns {Extent}
 */
function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/**
 * @param {number[]} values
 * @returns {Extent}
 */
function quantiles(values) {
  const sorted = Float64Array.from(values).sort();
  const skipped = Math.floor(sorted.length * CLIPPED);
  return [sorted[skipped], sorted[sorted.length - 1 - skipped]];
}

/**
 * The index of the first of ascending positions that is at least `position`, or with `after` larger than it.
 *
 * @param {number[]} x
 * @param {number} position
 */
export function firstAfter(x, position, after = false) {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < position || (after && x[middle] === position)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The position within a range, of any curve's point, that is nearest to a position; null without a point there.
 *
 * @param {{ x: number[] }[]} curves
 * @param {number} position
 * @param {Extent} range
 */
export function nearestPosition(curves, position, [low, high]) {
  let nearest = null;
  for (const { x } of curves) {
    const [first, end] = [firstAfter(x, low), firstAfter(x, high, true)];
    if (first === end) continue;
    const found = x[Math.min(end - 1, Math.max(first, nearestPoint(x, position)))];
    if (nearest === null || Math.abs(found - position) < Math.abs(nearest - position)) nearest = found;
  }
  return nearest;
}

/**
 * The index of the point that is nearest to a position; -1 without points.
 *
 * @param {number[]} x
 * @param {number} position
 */
export function nearestPoint(x, position) {
  const next = firstAfter(x, position);
  if (next === 0) return x.length ? 0 : -1;
  if (next === x.length) return x.length - 1;
  return position - x[next - 1] <= x[next] - position ? next - 1 : next;
}

/**
 * The ticks, pairs of a position from 0 to 1 and a label, that are at least `gap` pixels apart on an axis; first those at its ends.
 *
 * @param {[number, string][]} ticks
 * @param {number} length
 * @param {number} gap
 */
export function apart(ticks, length, gap) {
  /** @type {[number, string][]} */
  const kept = [];
  for (const one of [ticks[0], ticks.at(-1), ...ticks.slice(1, -1)]) {
    if (kept.every(([position]) => Math.abs(position - one[0]) * length >= gap)) kept.push(one);
  }
  return kept;
}
