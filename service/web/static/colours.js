// Colours of curves, from the variables of the page, which differ between the light and the dark theme.

const PALETTE = ["accent", "c2", "c3", "c4", "c5", "c6"];

/**
 * The value of a colour variable of the page.
 *
 * @param {string} name
 */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * @param {number} n
 * @param {number} count
 */
const hueOf = (n, count) => Math.round((360 * n) / count + 215) % 360;

/**
 * The colour of the n-th of `count` curves: of the palette as far as it reaches, else a hue of its own.
 *
 * @param {number} n
 */
export function curveColour(n, count = 1) {
  return count <= PALETTE.length
    ? colour(PALETTE[n % PALETTE.length])
    : `hsl(${hueOf(n, count)} 62% ${colour("curve-light")})`;
}

/**
 * The same colour for the style of an element, which follows the theme.
 *
 * @param {number} n
 */
export function swatchColour(n, count = 1) {
  return count <= PALETTE.length
    ? `var(--${PALETTE[n % PALETTE.length]})`
    : `hsl(${hueOf(n, count)} 62% var(--curve-light))`;
}

/**
 * Call back when the page changes between the light and the dark theme.
 *
 * @param {() => void} callback
 */
export const onThemeChange = (callback) => document.addEventListener("themechange", callback);
