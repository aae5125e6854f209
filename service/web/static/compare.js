// The comparison of runs: a chart for each metric with the curves of all, and the fields in which their specs differ.
// A plugin may add to it what it knows of the runs as a group.

import { urlOf } from "./address.js";
import { ApiError, call, query } from "./api.js";
import { ChartGrid, PINNED } from "./chart_grid.js";
import { COMBINED } from "./chart_list.js";
import { connectChartTools, connectCombination } from "./chart_tools.js";
import { readView } from "./chart_view.js";
import { swatchOf } from "./colours.js";
import { connectCodes } from "./compare_code.js";
import { ComparedMedia } from "./compare_media.js";
import { number, specValue } from "./format.js";
import { withDistinctNames } from "./job_rows.js";
import { TERMINAL, tone } from "./job_status.js";
import { afterPaint, byId, data, make, setText, toastError, within } from "./page.js";
import { inParts } from "./parts.js";
import { AXES, RunCurves, SELECTED, TOKENS } from "./run_curves.js";
import { shortened } from "./spec_changes.js";
import { place, RowOrder } from "./row_order.js";
import { connectPicker } from "./run_picker.js";

export const REFRESH_INTERVAL = 5000; // milliseconds between two reads of runs that are not finished

const HIDDEN = "hide"; // in the address: ids of runs
const GROUP = "group"; // in the address: the field by which runs are grouped
const AT = "at"; // in the address: the position of the values beside the names
const MAX_NAMING_FIELDS = 2;
const DIGEST = /^sha256:[0-9a-f]{64}$/;
/** @type {string[]} */
const fieldNames = data.fields;
const { runs } = /** @type {{ runs: Run[] }} */ (data);
/** @type {RunGroup | null} */
let group = null;
/** @type {ChartGrid} */
let grid;
/** @type {() => void} */
let showAxes;
/** @type {ComparedMedia} */
let media;

const parameters = new URLSearchParams(location.search);
const view = { ...readView(parameters, AXES), key: data.key };
const curves = new RunCurves(runs, view, { loaded: show, failed: restoreAxis });
for (const id of parameters.getAll(HIDDEN)) if (runs.some((run) => run.id === id)) curves.hidden.add(id);
/** @type {number | null} where the pointer is in a chart. */
let pointed = null;

// -- reading -----------------------------------------------------------------------------------------------------------

/** @type {Promise<void> | null} */
let refreshing = null; // one at a time: reading many runs may take longer than the interval

function refresh() {
  refreshing ??= readChanges().finally(() => {
    refreshing = null;
  });
  return refreshing;
}

async function readChanges() {
  const active = runs.filter(({ status }) => !TERMINAL.has(status));
  if (group && (active.length || group.isRunning)) await group.read();
  if (!active.length) return;
  for (const run of active) {
    const { status, metrics } = group?.stateOf(run.id) ?? (await call(`/v1/jobs/${run.id}`));
    if (status) run.status = status;
    run.tokens ||= TOKENS in metrics;
    showStatus(run);
    addMetrics(Object.keys(metrics));
  }
  group?.show();
  if (await curves.reload()) grid.redraw();
  await media.refresh(active);
}

/**
 * Add metrics to the lists and the charts; the first ones that the runs have are selected.
 *
 * @param {string[]} keys
 */
function addMetrics(keys) {
  if (!view.key && keys.length) {
    view.key = [group?.metric, "train/loss"].find((key) => key && keys.includes(key)) ?? keys[0];
  }
  addOptions(byId("key", HTMLSelectElement), keys, view.key, "none yet");
  group?.addMetrics(keys);
  const added = keys.filter((key) => !curves.keys.includes(key));
  curves.keys.push(...added);
  if (added.length) grid?.refresh();
}

/**
 * Add metrics to a list.
 *
 * @param {HTMLSelectElement} select
 * @param {string[]} keys
 * @param {string} selected
 * @param {string} none is shown while there is no metric.
 */
export function addOptions(select, keys, selected, none) {
  const known = Array.from(select.options, (option) => option.value);
  select.append(...keys.filter((key) => !known.includes(key)).map((key) => make("option", { value: key, text: key })));
  if (selected) select.querySelector('option[value=""]')?.remove();
  else if (!select.options.length) select.append(make("option", { value: "", text: none }));
  select.value = selected;
}

// -- showing -----------------------------------------------------------------------------------------------------------

/** @type {Map<string, HTMLElement>} */
const rows = new Map(); // of the table, by run; made in parts
const order = new RowOrder(orderRows);

/**
 * A value of a spec; of a digest the beginning, which is enough to tell two apart.
 *
 * @param {any} value
 */
function valueCell(value) {
  return DIGEST.test(value)
    ? make("td", { class: "mono" }, shortened(value, 19))
    : make("td", {}, shortened(specValue(value)));
}

/** @param {Run} run */
function tableRow(run) {
  const others = runs.filter((other) => other !== run).map((other) => other.id);
  return make(
    "tr",
    { "data-id": run.id },
    make(
      "td",
      { class: "name" },
      make(
        "div",
        {},
        make("input", {
          type: "checkbox",
          checked: !curves.hidden.has(run.id),
          "aria-label": `Show ${run.name}`,
          title: "Show the curves",
          onchange: ({ target }) => setHidden(run.id, !target.checked),
        }),
        make("i", { class: "swatch", "aria-hidden": "true" }),
        make("a", { href: urlOf(`/jobs/${run.id}`), text: run.name }),
      ),
    ),
    make("td", { class: "right at" }),
    make("td", {}, make("span", { class: "chip" })),
    ...run.values.map(valueCell),
    ...["min", "max"].map((name) => make("td", { class: `right ${name}` })),
    make(
      "td",
      { class: "right" },
      group
        ? null
        : make("a", {
            class: "quiet",
            href: urlOf(`/compare${query({ job: others })}`),
            "aria-label": `Remove ${run.name}`,
            text: "×",
          }),
    ),
  );
}

/**
 * The head of a column with values of the selected metric.
 *
 * @param {string} column
 * @param {string} text
 */
const metricHead = (column, text) =>
  order.head(column, { class: "right" }, `${text} `, make("span", { class: "mono metric" }));

function showTable() {
  byId("runs", HTMLTableElement)
    .createTHead()
    .append(
      make(
        "tr",
        {},
        order.head("name", {}, "Run"),
        order.head("last", { class: "right", title: "The last value, or the value at the position" }, "Value"),
        order.head("status", {}, "Status"),
        ...fieldNames.map((text, n) => order.head(n, { class: "mono" }, text)),
        metricHead("min", "Min"),
        metricHead("max", "Max"),
        make("th", {}, make("span", { class: "visually-hidden", text: "Remove" })),
      ),
    );
  if (runs.length > 1)
    setText(within(byId("runs-title"), "small"), data.fields.length ? "" : "their specs are the same");
  showTableValues();
  afterPaint()
    .then(() => inParts(runs, addRow))
    .then(orderRows); // it is below the charts
}

/**
 * What a column sorts a run by.
 *
 * @param {Run} run
 * @param {string | number} column
 * @returns {any}
 */
function keyOf(run, column) {
  if (typeof column === "number") return run.values[column];
  return { name: run.name, status: statusOf(run).text, ...lastAndEnds(run) }[column];
}

/** Put the rows in the chosen order. */
function orderRows() {
  if (rows.size === runs.length)
    order.sorted(runs, keyOf).forEach((run, n) => {
      const row = rows.get(run.id);
      if (row) place(byId("runs", HTMLTableElement).tBodies[0], row, n);
    });
}

/**
 * Add a run to the table as it is now.
 *
 * @param {Run} run
 * @param {number} n
 */
function addRow(run, n) {
  const row = tableRow(run);
  rows.set(run.id, row);
  row.classList.toggle("highlighted", run.id === curves.highlighted);
  row.classList.toggle("off", curves.passing !== null && !curves.passing.has(run.id));
  row.addEventListener("pointerenter", () => highlight(run.id));
  row.addEventListener("pointerleave", () => highlight(null));
  showStatus(run);
  showValues(run, n);
  byId("runs", HTMLTableElement).tBodies[0].append(row);
}

/**
 * Show or hide the curves of a run; the address has those that are hidden.
 *
 * @param {string} id
 * @param {boolean} isHidden
 */
function setHidden(id, isHidden) {
  if (isHidden) curves.hidden.add(id);
  else curves.hidden.delete(id);
  const address = new URLSearchParams(location.search);
  address.delete(HIDDEN);
  for (const one of curves.hidden) address.append(HIDDEN, one);
  history.replaceState(null, "", `${location.pathname}?${address}`);
  grid.redraw();
  media.redraw();
}

/**
 * Draw the mean of the runs of each value of a field; "" draws each run.
 *
 * @param {string} field
 */
function groupBy(field) {
  const n = fieldNames.indexOf(field);
  const values = new Map(runs.map((run) => [run.id, `${field} ${specValue(run.values[n])}`]));
  curves.group = n < 0 ? null : ({ id }) => values.get(id) ?? "";
  const address = new URLSearchParams(location.search);
  if (n < 0) address.delete(GROUP);
  else address.set(GROUP, field);
  history.replaceState(null, "", `${location.pathname}?${address}`);
  runs.forEach(showValues);
  grid.redraw();
  media?.redraw();
}

/** The position of the runs’ values: of the pointer, or the one that was typed; null: the last values. */
function position() {
  const text = byId("at", HTMLInputElement).value.replaceAll(/\s/g, "");
  return pointed ?? (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
}

/** Show the value of each run at the position. */
function showValuesAt() {
  const at = position();
  for (const run of runs) {
    const cell = rows.get(run.id)?.querySelector(".at");
    if (cell) setText(cell, number(curves.valueAt(run, view.key, at)));
  }
}

/** @type {number | undefined} */
let frame;

/**
 * Show the values at the pointer, and highlight the run whose curve it is at.
 *
 * @param {number | null} at
 * @param {string | null} run
 */
function onHover(at, run) {
  pointed = at;
  highlight(run);
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    showValuesAt();
  });
}

function showTableValues() {
  for (const element of byId("runs", HTMLTableElement).createTHead().querySelectorAll(".metric"))
    setText(element, view.key);
  runs.forEach(showValues);
  showValuesAt();
  if (order.column !== null) orderRows();
}

/**
 * The status of a run, or what its group has decided.
 *
 * @param {Run} run
 */
const statusOf = (run) => group?.chipOf(run) ?? { text: run.status ?? "", tone: tone(run.status ?? null) };

/** @param {Run} run */
function showStatus(run) {
  const chip = rows.get(run.id)?.querySelector(".chip");
  if (!chip) return;
  const { text, tone } = statusOf(run);
  setText(chip, text);
  chip.className = `chip ${tone}`;
}

/**
 * The last, smallest and largest value of a run's selected curve; null without one.
 *
 * @param {Run} run
 */
function lastAndEnds(run) {
  const values = curves.curveOf(run, view.key)?.y ?? [];
  const finite = values.filter(Number.isFinite);
  const [low, high] = finite.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  return { last: values.at(-1), min: finite.length ? low : null, max: finite.length ? high : null };
}

/**
 * The background of a sample of a run's curve, or of its group.
 *
 * @param {Run} run
 * @param {number} n
 */
function colourOf(run, n) {
  const groups = curves.groups();
  return swatchOf(groups.length ? groups.findIndex(([, members]) => members.includes(run)) : n);
}

/**
 * Show the colour of a run, the value of its selected curve at the position, and the smallest and largest one.
 *
 * @param {Run} run
 * @param {number} n
 */
function showValues(run, n) {
  const row = rows.get(run.id);
  if (!row) return;
  within(row, ".swatch").style.background = colourOf(run, n);
  const { min, max } = lastAndEnds(run);
  setText(within(row, ".min"), number(min));
  setText(within(row, ".max"), number(max));
  setText(within(row, ".at"), number(curves.valueAt(run, view.key, position())));
}

/**
 * Show curves that were loaded.
 *
 * @param {string[]} keys
 */
function show(keys) {
  grid.redraw(keys);
  if (!keys.includes(view.key)) return;
  showTableValues();
  const sizes = runs.map((run) => curves.curveOf(run, view.key)?.x?.length ?? 0);
  const missing = sizes.filter((size) => !size).length;
  setText(
    byId("chart-note"),
    missing === runs.length
      ? curves.absenceOf({ keys: [view.key] })
      : missing
        ? `${missing} of ${runs.length} runs ${missing === 1 ? "has" : "have"} not logged this metric`
        : Math.max(...sizes) === 1
          ? "Each run has one point of this metric."
          : "",
  );
  group?.show();
}

// -- actions of the user -----------------------------------------------------------------------------------------------

/**
 * Highlight one run in the curves, the coordinates and the table; null: none.
 *
 * @param {string | null} id
 */
function highlight(id) {
  if (curves.highlighted === id) return;
  rows.get(curves.highlighted ?? "")?.classList.remove("highlighted");
  curves.highlighted = id;
  rows.get(id ?? "")?.classList.add("highlighted");
  group?.highlight(id);
  grid.redraw();
}

/**
 * Show which runs a filter of the group leaves.
 *
 * @param {Set<string>} ids
 */
function filter(ids) {
  curves.passing = ids.size === runs.length ? null : ids;
  for (const [id, row] of rows) row.classList.toggle("off", !ids.has(id));
  grid?.redraw();
  media?.redraw();
}

/** Read the runs again after a change. */
async function refreshAfterChange() {
  await refreshing?.catch(() => {}); // it may have been before
  await refresh().catch(() => {});
}

/**
 * Return to the axis of the loaded curves if the service refuses the chosen one.
 *
 * @param {Error} error
 */
function restoreAxis(error) {
  toastError(error);
  if (!(error instanceof ApiError) || view.axis === curves.loadedAxis) return;
  grid.change({ axis: curves.loadedAxis });
  showAxes();
}

/**
 * Change the view of the charts.
 *
 * @param {Partial<ChartsView>} values
 */
function changeView(values) {
  grid.change("axis" in values ? { ...values, range: null } : values);
  byId("reset-zoom").hidden = view.range === null;
}

/**
 * Select a metric for the table and the large chart.
 *
 * @param {string} key
 */
function select(key) {
  view.key = key;
  const address = new URLSearchParams(location.search);
  address.set("key", key);
  history.replaceState(null, "", `${location.pathname}?${address}`);
  grid.refresh();
  grid.redraw();
  show([view.key]);
}

/** @param {number} width of the charts. */
function start(width) {
  addMetrics(data.keys);
  const key = byId("key", HTMLSelectElement);
  key.addEventListener("change", () => select(key.value));
  grid = new ChartGrid(byId("charts"), view, curves, {
    onRange: (range) => {
      byId("reset-zoom").hidden = range === null;
    },
    onHover,
    isOpen: (name) => [SELECTED, PINNED, COMBINED].includes(name), // below them are the coordinates and the table
    width,
  });
  if (!curves.axes().includes(view.axis)) changeView({ axis: AXES[0] });
  showAxes = connectChartTools(view, changeView, () => curves.axes());
  connectCombination(view, changeView, () => curves.keys);
  const field = byId("group", HTMLSelectElement);
  field.append(...fieldNames.map((text) => make("option", { value: text, text })));
  field.disabled = fieldNames.length === 0;
  field.addEventListener("change", () => groupBy(field.value));
  const wanted = parameters.get(GROUP) ?? "";
  if (fieldNames.includes(wanted)) {
    field.value = wanted;
    groupBy(wanted);
  }
  const at = byId("at", HTMLInputElement);
  at.value = parameters.get(AT) ?? "";
  at.addEventListener("input", () => {
    const address = new URLSearchParams(location.search);
    if (at.value) address.set(AT, at.value);
    else address.delete(AT);
    history.replaceState(null, "", `${location.pathname}?${address}`);
    showValuesAt();
  });
  group?.show();
  showTable();
  media = new ComparedMedia(runs, { isShown: (run) => curves.isShown(run), colourOf });
  setInterval(() => {
    if (!document.hidden) refresh().catch(() => {});
  }, REFRESH_INTERVAL);
}

/**
 * The fields of the spec that tell runs of one name apart, if they are few: `lr 0.001`.
 *
 * @param {Run} run
 */
const differenceOf = ({ values }) =>
  fieldNames.length > MAX_NAMING_FIELDS
    ? ""
    : fieldNames.map((field, n) => `${field.split(".").at(-1)} ${specValue(values[n]).slice(0, 24)}`).join(", ");

/**
 * Show the comparison of the page.
 *
 * @param {(comparison: Comparison) => RunGroup | null} makeGroup
 */
export function showComparison(makeGroup = () => null) {
  const width = runs.length ? byId("charts").clientWidth : 0;
  group = makeGroup({ runs, view, highlight, filter, refresh: refreshAfterChange });
  withDistinctNames(runs, differenceOf).forEach(({ name }, n) => {
    runs[n].name = name;
  });
  if (runs.length) {
    start(width);
    connectCodes(runs);
  }
  connectPicker(
    byId("search", HTMLInputElement),
    byId("search-results"),
    runs.map((run) => run.id),
  );
}
