// Plotly, loaded once and late, and charts in the colours of the page.

import { plotlyUrl } from "./page.js";

let loaded;

/** Plotly itself. It takes seconds to parse, so nothing that can be shown without it waits for it. */
export function plotly() {
  loaded ??= painted().then(() => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = plotlyUrl;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charts could not be loaded"));
    document.head.append(script);
  }));
  return loaded;
}

/** Once the page, as the server drew it, is on the screen: parsing would hold that up. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** A colour of the page by the name of its variable. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const PALETTE = ["accent", "c2", "c3", "c4", "c5", "c6"];

/** The colour of the n-th curve. */
export const curveColour = (n) => colour(PALETTE[n % PALETTE.length]);

/** A layout in the colours of the page; what is given goes over it. */
export function layout({ xaxis = {}, yaxis = {}, ...rest } = {}) {
  const axis = {
    gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: false,
    tickfont: { size: 11, color: colour("soft") }, titlefont: { size: 11 }, exponentformat: "power", minexponent: 4,
  };
  return {
    margin: { l: 52, r: 8, t: 6, b: 26 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: colour("text") },
    showlegend: false, hovermode: "x unified", dragmode: "zoom",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("text"), size: 12 } },
    xaxis: { ...axis, exponentformat: "SI", minexponent: 3, ...xaxis }, yaxis: { ...axis, ...yaxis },
    uirevision: "same",
    ...rest,
  };
}

/** Draw or redraw a chart in a frame. */
export async function draw(frame, traces, how) {
  const library = await plotly();
  if (!frame.classList.contains("js-plotly-plot")) frame.replaceChildren();
  await library.react(frame, traces, layout(how), { displaylogo: false, displayModeBar: false, responsive: true, doubleClick: false, showTips: false });
}

/** Call back when the system changes between light and dark. */
export const onTheme = (back) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", back);
