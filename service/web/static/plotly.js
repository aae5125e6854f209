// Plotly, loaded once after the first paint, and charts in the colours of the page.

import { afterPaint, plotlyUrl } from "./page.js";

let loading;

/** Plotly itself. Parsing it takes seconds, so previews are shown until it is loaded. */
export function plotly() {
  loading ??= afterPaint().then(() => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = plotlyUrl;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charts could not be loaded"));
    document.head.append(script);
  }));
  return loading;
}

/** Whether Plotly has drawn into a frame. */
export const isDrawn = (frame) => frame.classList.contains("js-plotly-plot");

/** The value of a colour variable of the page. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const PALETTE = ["accent", "c2", "c3", "c4", "c5", "c6"];

/** The colour of the n-th curve. */
export const curveColour = (n) => colour(PALETTE[n % PALETTE.length]);

/** Text that Plotly draws as it is. Plotly reads tags and entities in names and titles as markup. */
export const literal = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const MAX_NAME = 60; // characters of a name in a legend or a label

const shortened = (name) => { const characters = [...name]; return characters.length > MAX_NAME ? `${characters.slice(0, MAX_NAME - 1).join("")}…` : name; };

const withLiteralName = (trace) => (trace.name === undefined ? trace : { ...trace, name: literal(shortened(String(trace.name))) });

const withLiteralTitle = (axis = {}) => (axis.title?.text ? { ...axis, title: { ...axis.title, text: literal(axis.title.text) } } : axis);

/** A layout in the colours of the page, overridden by the given options. */
function layout({ xaxis = {}, yaxis = {}, ...options } = {}) {
  const axis = {
    gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: false,
    tickfont: { size: 11, color: colour("soft") }, titlefont: { size: 11 }, exponentformat: "power", minexponent: 4,
  };
  return {
    margin: { l: 52, r: 8, t: 6, b: 26 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: colour("text") },
    showlegend: false, hovermode: "x unified", dragmode: "zoom",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), namelength: -1, font: { color: colour("text"), size: 12 } },
    xaxis: { ...axis, exponentformat: "SI", minexponent: 3, ...withLiteralTitle(xaxis) }, yaxis: { ...axis, ...withLiteralTitle(yaxis) },
    uirevision: "same",
    ...options,
  };
}

/** Draw a chart into a frame, or update it. Names and titles are plain text. */
export async function draw(frame, traces, options) {
  const library = await plotly();
  if (!isDrawn(frame)) frame.replaceChildren();
  await library.react(frame, traces.map(withLiteralName), layout(options), { displaylogo: false, displayModeBar: false, responsive: true, doubleClick: false, showTips: false });
}

/** Call back when the system changes between light and dark. */
export const onThemeChange = (callback) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
