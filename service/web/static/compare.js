// The page that compares runs: their curves in one chart, and the fields in which their specs differ.

import { ApiError, call, query } from "./api.js";
import { showPreview } from "./curve_preview.js";
import { smoothed } from "./curves.js";
import { asNumber, number, specValue } from "./format.js";
import { memberChanges } from "./job_rows.js";
import { TERMINAL, tone } from "./job_status.js";
import { byId, confirmAction, data, make, setText, toast, toastError } from "./page.js";
import { ParallelCoordinates } from "./parallel_coordinates.js";
import { colour, curveColour, draw, isDrawn, onThemeChange } from "./plotly.js";
import { connectPicker } from "./run_picker.js";

const RUNS_PER_REQUEST = 20; // the limit of the API
const REFRESH_INTERVAL = 5000; // milliseconds between two reads of runs that are not finished
const AXIS_TITLES = { step: "", time: "seconds of training", tokens: "tokens" };

const { runs } = data;
let curves = new Map();
let { members } = data;
let highlighted = null;

// -- the view is stored in the address ---------------------------------------------------------------------------------

const parameters = new URLSearchParams(location.search);
const view = {
  key: data.key, outcome: parameters.get("outcome") ?? data.outcome, axis: AXIS_TITLES[parameters.get("x")] === undefined ? "step" : parameters.get("x"),
  log: parameters.get("log") === "1", weight: Math.min(0.99, Number(parameters.get("smooth")) || 0),
};

function storeView() {
  const address = new URLSearchParams(location.search);
  const values = { key: view.key, outcome: view.outcome === data.outcome ? "" : view.outcome, x: view.axis === "step" ? "" : view.axis, log: view.log ? "1" : "", smooth: view.weight || "" };
  for (const [name, value] of Object.entries(values)) if (value === "") address.delete(name); else address.set(name, value);
  history.replaceState(null, "", `${location.pathname}?${address}`);
}

// -- reading -----------------------------------------------------------------------------------------------------------

let drawnAxis = "step"; // the axis of the loaded curves

async function load() {
  if (!view.key) return;
  const { key, axis } = view;
  const loaded = new Map();
  const max_points = runs.length > RUNS_PER_REQUEST ? 400 : 2000;
  for (let first = 0; first < runs.length; first += RUNS_PER_REQUEST) {
    const job = runs.slice(first, first + RUNS_PER_REQUEST).map((run) => run.id);
    const answer = await call(`/v1/metrics${query({ job, keys: key, x: axis === "step" ? "" : axis, max_points })}`);
    for (const one of answer.data) {
      const [curve] = one.series;
      if (curve?.steps.length) loaded.set(one.job_id, { x: axis === "step" ? curve.steps : curve.x, y: curve.values.map(asNumber) });
    }
  }
  if (key !== view.key || axis !== view.axis) return;
  curves = loaded;
  drawnAxis = axis;
  show();
}

async function refresh() {
  const active = runs.filter((run) => !TERMINAL.has(run.status));
  if (!active.length) return;
  if (data.sweep) ({ members } = await call(`/v1/sweeps/${data.sweep}`));
  const byJobId = new Map(members.map((member) => [member.job_id, member]));
  for (const run of active) {
    const { status, metrics } = byJobId.get(run.id) ?? (await call(`/v1/jobs/${run.id}`));
    if (status) run.status = status;
    showStatus(run);
    addMetrics(Object.keys(metrics));
  }
  showCancelButton();
  await load();
}

/** Add metrics to the lists; the first ones that the runs have are shown at once. */
function addMetrics(keys) {
  if (!view.key && keys.length) {
    view.key = keys.includes("train/loss") ? "train/loss" : keys[0];
    view.outcome ||= view.key;
  }
  for (const [select, selected, none] of [[byId("key"), view.key, "none yet"], [byId("outcome"), view.outcome, "no metric yet"]]) {
    if (!select) continue;
    const known = Array.from(select.options, (option) => option.value);
    select.append(...keys.filter((key) => !known.includes(key)).map((key) => make("option", { text: key })));
    if (selected) select.querySelector('option[value=""]')?.remove();
    else if (!select.options.length) select.append(make("option", { value: "", text: none }));
    select.value = selected;
  }
}

// -- showing -----------------------------------------------------------------------------------------------------------

const rows = new Map(runs.map((run) => [run.id, tableRow(run)]));

function tableRow(run) {
  const others = runs.filter((other) => other !== run).map((other) => other.id);
  return make("tr", { "data-id": run.id },
    make("td", { class: "name" }, make("i", { class: "swatch", "aria-hidden": "true" }), make("a", { href: `/jobs/${run.id}`, text: run.name })),
    make("td", {}, make("span", { class: "chip" })),
    ...run.values.map((value) => make("td", { text: specValue(value) })),
    ...["last", "min", "max"].map((name) => make("td", { class: `right ${name}` })),
    make("td", { class: "right" }, data.sweep ? null : make("a", { class: "quiet", href: `/compare${query({ job: others })}`, "aria-label": `Remove ${run.name}`, text: "×" })));
}

function showTable() {
  byId("runs").tHead.append(make("tr", {}, make("th", { text: "Run" }), make("th", { text: "Status" }),
    ...data.fields.map((text) => make("th", { class: "mono", text })),
    ...["Last", "Min", "Max"].map((text) => make("th", { class: "right", text })),
    make("th", {}, make("span", { class: "visually-hidden", text: "Remove" }))));
  byId("runs").tBodies[0].append(...rows.values());
  if (runs.length > 1) setText(byId("runs-title").querySelector("small"), data.fields.length ? "and the fields in which their specs differ" : "their specs are the same");
  runs.forEach(showStatus);
  runs.forEach(showValues);
}

function showStatus(run) {
  const chip = rows.get(run.id).querySelector(".chip");
  setText(chip, run.status);
  chip.className = `chip ${tone(run.status)}`;
}

/** Show the colour of a run and the last, smallest and largest value of its curve. */
function showValues(run, n) {
  const row = rows.get(run.id);
  const values = curves.get(run.id)?.y ?? [];
  const finite = values.filter(Number.isFinite);
  const [low, high] = finite.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  row.querySelector(".swatch").style.background = runColour(n);
  setText(row.querySelector(".last"), number(values.at(-1)));
  setText(row.querySelector(".min"), number(finite.length ? low : null));
  setText(row.querySelector(".max"), number(finite.length ? high : null));
}

const isDark = matchMedia("(prefers-color-scheme: dark)");
const runColour = (n) => (runs.length > 6 ? `hsl(${Math.round((360 * n) / runs.length + 215) % 360} 62% ${isDark.matches ? 66 : 44}%)` : curveColour(n));

function show() {
  runs.forEach(showValues);
  const missing = runs.filter((run) => !curves.get(run.id)?.x?.length).length;
  setText(byId("chart-note"), missing && missing < runs.length ? `${missing} of ${runs.length} runs ${missing === 1 ? "has" : "have"} not logged this metric` : "");
  parallel?.show(coordinates());
  if (missing === runs.length) {
    setText(byId("chart-note"), view.axis === "tokens" && curves.size ? "These runs do not report tokens." : "No points of this metric yet.");
    return;
  }
  if (!isDrawn(byId("frame")) && view.axis === "step") {
    const lines = runs.map((run, n) => ({ steps: curves.get(run.id)?.x ?? [], values: curves.get(run.id)?.y ?? [], colour: runColour(n) }));
    showPreview(byId("frame"), lines, `${view.key} by step`);
  }
  draw(byId("frame"), runs.flatMap(traces), {
    xaxis: { autorange: true, title: { text: AXIS_TITLES[view.axis], standoff: 4 } },
    yaxis: { type: view.log ? "log" : "linear", autorange: true },
    hovermode: runs.length > 6 ? "closest" : "x unified",
    margin: { l: 56, r: 8, t: 6, b: view.axis === "step" ? 26 : 40 },
    uirevision: `${view.key} ${view.axis} ${view.log}`,
  });
}

function traces(run, n) {
  const curve = curves.get(run.id);
  if (!curve?.x?.length) return [];
  const faded = highlighted !== null && highlighted !== run.id;
  const line = { color: faded ? colour("line") : runColour(n), width: highlighted === run.id ? 2.6 : 1.6 };
  const few = curve.x.length < 3 || view.key.startsWith("eval/");
  const trace = { x: curve.x, y: curve.y, name: run.name, type: "scatter", mode: few ? "lines+markers" : "lines", marker: { size: 5 }, line, hovertemplate: "%{y:.4~g}" };
  if (!view.weight || curve.x.length < 3) return [trace];
  const faint = { ...trace, opacity: 0.22, hoverinfo: "skip", hovertemplate: undefined };
  const smooth = { ...trace, mode: "lines", y: smoothed(curve.y, view.weight, view) };
  return runs.length > 6 ? [smooth] : [faint, smooth];
}

/** The members of a sweep as lines across its fields and the chosen metric. */
function coordinates() {
  const fields = [...new Set(members.flatMap((member) => Object.keys(member.values)))];
  return {
    axes: [...fields, view.outcome || "no metric yet"],
    lines: members.filter((member) => rows.has(member.job_id)).map((member) => ({
      id: member.job_id,
      name: runs.find((run) => run.id === member.job_id).name,
      values: [...fields.map((field) => member.values[field] ?? null), asNumber(member.metrics[view.outcome] ?? null)],
    })),
  };
}

// -- actions of the user -----------------------------------------------------------------------------------------------

/** Highlight one run in the curves, the coordinates and the table; null: none. */
function highlight(id) {
  if (highlighted === id) return;
  rows.get(highlighted)?.classList.remove("highlighted");
  highlighted = id;
  rows.get(highlighted)?.classList.add("highlighted");
  parallel?.highlight(highlighted);
  if (isDrawn(byId("frame"))) show();
}

/** Show the button that cancels a sweep while any member is not finished. */
function showCancelButton() {
  if (byId("cancel")) byId("cancel").hidden = runs.every((run) => TERMINAL.has(run.status));
}

async function cancelSweep() {
  if (!(await confirmAction("Cancel the remaining jobs of this sweep?", "Waiting jobs will not start, and running jobs will stop. Checkpoints and metrics are kept."))) return;
  await call(`/v1/sweeps/${data.sweep}/cancel`, { method: "POST" }).then(() => toast("Cancelling the remaining jobs."), toastError);
  await refresh().catch(() => {});
}

function changeView(change, { read = false } = {}) {
  Object.assign(view, change);
  storeView();
  if (read) load().catch(restoreAxis); else show();
}

/** Return to the axis of the loaded curves if a run does not have the chosen one, such as tokens. */
function restoreAxis(error) {
  toastError(error);
  if (!(error instanceof ApiError) || view.axis === drawnAxis) return;
  byId("axis").value = drawnAxis;
  changeView({ axis: drawnAxis }, { read: curves.size === 0 });
}

const parallel = byId("parallel") ? new ParallelCoordinates(byId("parallel"), {
  highlight,
  filtered: (ids) => { for (const [id, row] of rows) row.classList.toggle("off", !ids.has(id)); },
}) : null;

function start() {
  for (const member of members) { // all members have the same name, so their changes identify them
    const run = runs.find((one) => one.id === member.job_id);
    if (run) run.name = memberChanges(member);
  }
  showTable();
  addMetrics(data.keys);
  byId("axis").value = view.axis;
  byId("log-scale").checked = view.log;
  byId("smooth").value = String(view.weight);
  byId("key").addEventListener("change", () => changeView({ key: byId("key").value }, { read: true }));
  byId("axis").addEventListener("change", () => changeView({ axis: byId("axis").value }, { read: true }));
  byId("log-scale").addEventListener("change", () => changeView({ log: byId("log-scale").checked }));
  byId("smooth").addEventListener("input", () => changeView({ weight: Number(byId("smooth").value) }));
  byId("outcome")?.addEventListener("change", () => changeView({ outcome: byId("outcome").value }));
  for (const [id, row] of rows) {
    row.addEventListener("pointerenter", () => highlight(id));
    row.addEventListener("pointerleave", () => highlight(null));
  }
  showCancelButton();
  byId("cancel")?.addEventListener("click", cancelSweep);
  onThemeChange(show);
  load().catch(restoreAxis);
  setInterval(() => { if (!document.hidden) refresh().catch(() => {}); }, REFRESH_INTERVAL);
}

if (runs.length) start();
connectPicker(byId("search"), byId("search-results"), runs.map((run) => run.id));
