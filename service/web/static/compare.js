// Curves of several runs in one frame, with the numbers of the chosen metric beside each run.

import { ApiError, call, query } from "./api.js";
import { smoothed } from "./curves.js";
import { asNumber, number } from "./format.js";
import { byId, confirmed, data, localTimes, make, say, setText } from "./page.js";
import { Parallel } from "./parallel.js";
import { pick } from "./picker.js";
import { colour, curveColour, draw, onTheme } from "./plotly.js";
import { changesOf, tone } from "./rows.js";

const AT_ONCE = 20; // runs that the API answers for in one go
const PAUSE = 5000; // milliseconds between two looks at what still runs
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const TITLES = { step: "", time: "seconds of training", tokens: "tokens" };

const runs = data.runs;
const rows = new Map([...document.querySelectorAll("#runs tbody tr")].map((row) => [row.dataset.id, row]));
let series = new Map();
let members = data.members;
let lit = null;

for (const member of members) { // all members have one name: what tells them apart is what each changes
  const run = runs.find((one) => one.id === member.job_id);
  if (run) run.name = changesOf(member);
}

// -- what is looked at lives in the address ----------------------------------------------------------------------------

const parameters = new URLSearchParams(location.search);
const view = {
  key: data.key, outcome: parameters.get("outcome") ?? data.outcome, axis: TITLES[parameters.get("x")] === undefined ? "step" : parameters.get("x"),
  log: parameters.get("log") === "1", weight: Math.min(0.99, Number(parameters.get("smooth")) || 0),
};

function remember() {
  const found = new URLSearchParams(location.search);
  const told = { key: view.key, outcome: view.outcome === data.outcome ? "" : view.outcome, x: view.axis === "step" ? "" : view.axis, log: view.log ? "1" : "", smooth: view.weight || "" };
  for (const [name, value] of Object.entries(told)) if (value === "") found.delete(name); else found.set(name, value);
  history.replaceState(null, "", `${location.pathname}?${found}`);
}

// -- reading -----------------------------------------------------------------------------------------------------------

let drawn = "step"; // the axis that the curves on the page are along

async function load() {
  if (!view.key) return;
  const [wanted, axis] = [view.key, view.axis];
  const found = new Map();
  const max_points = runs.length > AT_ONCE ? 400 : 2000;
  for (let first = 0; first < runs.length; first += AT_ONCE) {
    const job = runs.slice(first, first + AT_ONCE).map((run) => run.id);
    const answer = await call(`/v1/metrics${query({ job, keys: wanted, x: axis === "step" ? "" : axis, max_points })}`);
    for (const one of answer.data) {
      const [curve] = one.series;
      if (curve?.steps.length) found.set(one.job_id, { x: axis === "step" ? curve.steps : curve.x, y: curve.values.map(asNumber) });
    }
  }
  if (wanted !== view.key || axis !== view.axis) return;
  series = found;
  drawn = axis;
  show();
}

async function refresh() {
  const running = runs.filter((run) => !FINAL.has(run.status));
  if (!running.length) return;
  if (data.sweep) ({ members } = await call(`/v1/sweeps/${data.sweep}`));
  const known = new Map(members.map((member) => [member.job_id, member]));
  for (const run of running) {
    const { status, metrics } = known.get(run.id) ?? (await call(`/v1/jobs/${run.id}`));
    showStatus(run, status);
    offer(Object.keys(metrics));
  }
  showCancel();
  await load();
}

/** Metrics that no run had before can be chosen, too. */
function offer(keys) {
  const select = byId("key");
  const known = new Set(Array.from(select.options, (option) => option.value));
  for (const key of keys.filter((one) => !known.has(one))) {
    for (const list of [select, byId("outcome")]) list?.append(make("option", { text: key }));
  }
  if (view.key || !keys.length) return;
  view.key = keys.includes("train/loss") ? "train/loss" : keys[0];
  view.outcome ||= view.key;
  for (const [list, key] of [[select, view.key], [byId("outcome"), view.outcome]]) {
    list?.querySelector('option[value=""]')?.remove();
    if (list) list.value = key;
  }
}

// -- showing -----------------------------------------------------------------------------------------------------------

const runColour = (n) => (runs.length > 6 ? `hsl(${Math.round((360 * n) / runs.length + 215) % 360} 62% ${matchMedia("(prefers-color-scheme: dark)").matches ? 66 : 44}%)` : curveColour(n));

function showStatus(run, status) {
  if (!status) return;
  run.status = status;
  const chip = rows.get(run.id).querySelector(".chip");
  setText(chip, status);
  chip.className = `chip ${tone(status)}`;
}

function show() {
  runs.forEach((run, n) => fill(rows.get(run.id), series.get(run.id)?.y, runColour(n)));
  const without = runs.filter((run) => !series.get(run.id)?.x?.length).length;
  setText(byId("told"), without && without < runs.length ? `${without} of ${runs.length} runs ${without === 1 ? "has" : "have"} not logged this metric` : "");
  parallel?.show(coordinates());
  if (without === runs.length) {
    setText(byId("told"), view.axis === "tokens" && series.size ? "These runs do not report tokens." : "No points of this metric yet.");
    return;
  }
  draw(byId("frame"), runs.flatMap(traces), {
    xaxis: { autorange: true, title: { text: TITLES[view.axis], standoff: 4 } },
    yaxis: { type: view.log ? "log" : "linear", autorange: true },
    hovermode: runs.length > 6 ? "closest" : "x unified",
    margin: { l: 56, r: 8, t: 6, b: view.axis === "step" ? 26 : 40 },
    uirevision: `${view.key} ${view.axis} ${view.log}`,
  });
}

function fill(row, values, shade) {
  row.querySelector(".swatch").style.background = shade;
  const finite = (values ?? []).filter(Number.isFinite);
  const [low, high] = finite.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  setText(row.querySelector(".last"), values ? number(values.at(-1)) : number(null));
  setText(row.querySelector(".low"), finite.length ? number(low) : number(null));
  setText(row.querySelector(".high"), finite.length ? number(high) : number(null));
}

function traces(run, n) {
  const curve = series.get(run.id);
  if (!curve?.x?.length) return [];
  const faded = lit !== null && lit !== run.id;
  const line = { color: faded ? colour("line") : runColour(n), width: lit === run.id ? 2.6 : 1.6 };
  const few = curve.x.length < 3 || view.key.startsWith("eval/");
  const one = { x: curve.x, y: curve.y, name: run.name, type: "scatter", mode: few ? "lines+markers" : "lines", marker: { size: 5 }, line, hovertemplate: "%{y:.4~g}" };
  if (!view.weight || curve.x.length < 3) return [one];
  const faint = { ...one, opacity: 0.22, hoverinfo: "skip", hovertemplate: undefined };
  const smooth = { ...one, mode: "lines", y: smoothed(curve.y, view.weight, view) };
  return runs.length > 6 ? [smooth] : [faint, smooth];
}

/** Members of a sweep as lines across its fields and what came of them. */
function coordinates() {
  const fields = [...new Set(members.flatMap((member) => Object.keys(member.values)))];
  const there = members.filter((member) => rows.has(member.job_id));
  return {
    axes: [...fields, view.outcome || "no metric yet"],
    lines: there.map((member) => ({
      id: member.job_id,
      name: runs.find((run) => run.id === member.job_id).name,
      values: [...fields.map((field) => member.values[field] ?? null), asNumber(member.metrics[view.outcome] ?? null)],
    })),
  };
}

// -- what the reader does ----------------------------------------------------------------------------------------------

/** One run before the others, in the curves, the coordinates and the table. */
function light(id) {
  if (lit === id) return;
  rows.get(lit)?.classList.remove("on");
  lit = id;
  rows.get(lit)?.classList.add("on");
  parallel?.light(lit);
  if (byId("frame").classList.contains("js-plotly-plot")) show();
}

/** Of a sweep, those that wait or run can be ended together. */
function showCancel() {
  if (byId("cancel")) byId("cancel").hidden = runs.every((run) => FINAL.has(run.status));
}

async function cancel() {
  if (!(await confirmed(byId("sure"), "Cancel the remaining jobs of this sweep?", "Waiting jobs will not start, and running jobs will stop. Checkpoints and metrics are kept."))) return;
  await call(`/v1/sweeps/${data.sweep}/cancel`, { method: "POST" }).then(() => say("Cancelling the remaining jobs."), complain);
  await refresh().catch(() => {});
}

function change(what, { read = false } = {}) {
  Object.assign(view, what);
  remember();
  if (read) load().catch(refused); else show();
}

/** Some runs have no such axis, as tokens where a task counts examples: what is chosen is what is drawn. */
function refused(error) {
  complain(error);
  if (!(error instanceof ApiError) || view.axis === drawn) return;
  byId("axis").value = drawn;
  change({ axis: drawn }, { read: series.size === 0 });
}

const complain = (error) => say(error.message, { bad: true });

const parallel = byId("parallel") ? new Parallel(byId("parallel"), {
  light,
  keep: (ids) => { for (const [id, row] of rows) row.classList.toggle("off", !ids.has(id)); },
}) : null;

if (runs.length) {
  byId("axis").value = view.axis;
  byId("log-scale").checked = view.log;
  byId("smooth").value = String(view.weight);
  byId("key").addEventListener("change", () => change({ key: byId("key").value }, { read: true }));
  byId("axis").addEventListener("change", () => change({ axis: byId("axis").value }, { read: true }));
  byId("log-scale").addEventListener("change", () => change({ log: byId("log-scale").checked }));
  byId("smooth").addEventListener("input", () => change({ weight: Number(byId("smooth").value) }));
  for (const [id, row] of rows) {
    row.addEventListener("pointerenter", () => light(id));
    row.addEventListener("pointerleave", () => light(null));
  }
  byId("outcome")?.addEventListener("change", () => change({ outcome: byId("outcome").value }));
  if (byId("outcome")) byId("outcome").value = view.outcome;
  showCancel();
  byId("cancel")?.addEventListener("click", cancel);
  onTheme(show);
  load().catch(refused);
  setInterval(() => { if (!document.hidden) refresh().catch(() => {}); }, PAUSE);
}
pick(byId("search"), byId("found"), runs.map((run) => run.id));
localTimes();
