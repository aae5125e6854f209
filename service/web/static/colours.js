// Colours of curves, from the variables of the page, which differ between the light and the dark scheme.

const PALETTE = ["accent", "c2", "c3", "c4", "c5", "c6"];
const isDark = matchMedia("(prefers-color-scheme: dark)");

/** The value of a colour variable of the page. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The colour of the n-th of `count` curves: of the palette as far as it reaches, else a hue of its own. */
export function curveColour(n, count = 1) {
  if (count <= PALETTE.length) return colour(PALETTE[n % PALETTE.length]);
  return `hsl(${Math.round((360 * n) / count + 215) % 360} 62% ${isDark.matches ? 66 : 44}%)`;
}

/** Call back when the system changes between light and dark. */
export const onThemeChange = (callback) => isDark.addEventListener("change", callback);
