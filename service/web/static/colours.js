// Colours of curves, from the variables of the page, which differ between the light and the dark theme. Six curves are
// solid and the next six dashed, since no twelve colours differ enough for readers who do not see all hues.

const PALETTE = ["accent", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10", "c11", "c12"];
const CURVES_PER_DASH = 6;
const DASHES = [[], [6, 3], [2, 2], [9, 3, 2, 3], [14, 4], [2, 5]]; // pixels of lines and gaps in turn

/**
 * The value of a colour variable of the page.
 *
 * @param {string} name
 */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** @param {number} n */
const nameOf = (n) => PALETTE[n % PALETTE.length];

/** @param {number} n */
const dashOf = (n) => DASHES[Math.floor(n / CURVES_PER_DASH) % DASHES.length];

/**
 * The colour and the dashes of the n-th curve of a chart; they repeat after 36 curves.
 *
 * @param {number} n
 */
export const curveStyle = (n) => ({ colour: colour(nameOf(n)), dash: dashOf(n) });

/**
 * The background of a sample of the n-th curve, which follows the theme.
 *
 * @param {number} n
 * @param {"right" | "bottom"} [side] to which it runs.
 */
export const swatchOf = (n, side) => sample({ colour: `var(--${nameOf(n)})`, dash: dashOf(n) }, side);

/**
 * The background of a sample of a line.
 *
 * @param {{ colour: string, dash?: number[] }} line
 * @param {"right" | "bottom"} [side] to which it runs.
 */
export function sample({ colour: shade, dash = [] }, side = "right") {
  if (!dash.length) return shade;
  let end = 0;
  const stops = dash.map((length, n) => `${n % 2 ? "transparent" : shade} ${end}px ${(end += length)}px`);
  return `repeating-linear-gradient(to ${side}, ${stops.join(", ")})`;
}

/**
 * Call back when the page changes between the light and the dark theme.
 *
 * @param {() => void} callback
 */
export const onThemeChange = (callback) => document.addEventListener("themechange", callback);
