// The mean of several runs' curves, with a band of its deviation. Pure functions.

const MAX_POSITIONS = 1000; // of a mean; where the curves have more together, the longest curve's positions are taken

/**
 * The mean of curves at each position, and the band of one sample standard deviation around it. A curve counts between its
 * first and its last point, interpolated.
 *
 * @param {{ x: number[], y: number[] }[]} curves
 * @returns {{ x: number[], y: number[], band: [number[], number[]] }}
 */
export function meanCurve(curves) {
  const x = positionsOf(curves);
  const columns = curves.map((curve) => valuesAt(curve, x));
  const y = [];
  /** @type {[number[], number[]]} */
  const band = [[], []];
  for (const n of x.keys()) {
    const values = columns.map((column) => column[n]).filter(Number.isFinite);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    const deviation = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
    y.push(mean);
    band[0].push(mean - deviation);
    band[1].push(mean + deviation);
  }
  return { x, y, band };
}

/** @param {{ x: number[] }[]} curves */
function positionsOf(curves) {
  const all = [...new Set(curves.flatMap(({ x }) => x))];
  if (all.length <= MAX_POSITIONS) return all.sort((one, other) => one - other);
  return curves.reduce((one, other) => (other.x.length > one.x.length ? other : one)).x.slice();
}

/**
 * The values of a curve at ascending positions; NaN outside of it.
 *
 * @param {{ x: number[], y: number[] }} curve
 * @param {number[]} positions
 */
function valuesAt({ x, y }, positions) {
  let n = 0;
  return positions.map((position) => {
    if (position < x[0] || position > x[x.length - 1]) return NaN;
    while (n < x.length - 1 && x[n + 1] <= position) n += 1;
    if (x[n] === position) return y[n];
    return y[n] + ((position - x[n]) * (y[n + 1] - y[n])) / (x[n + 1] - x[n]);
  });
}
