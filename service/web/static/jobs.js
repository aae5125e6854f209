// The table of jobs: a query, columns, groups and a selection in the address; pages loaded on demand, and live rows.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { connectActions, showSelected } from "./bulk_actions.js";
import { columnHeads } from "./column_heads.js";
import { chooseColumns } from "./column_picker.js";
import { showWidths } from "./column_widths.js";
import { count } from "./format.js";
import { groupsOf, isAveraged, rowsOf } from "./job_groups.js";
import { JobList } from "./job_list.js";
import { evaluationOf, LOSS, mayEvaluate, METRIC, metricsChange, rowFields, withDistinctNames } from "./job_rows.js";
import { TERMINAL } from "./job_status.js";
import { rememberTable } from "./last_table.js";
import { around, byId, data, formatTimes, setText, showConnection, toastError, visitor, within } from "./page.js";
import { queryBox } from "./query_box.js";
import { RowSelection } from "./row_selection.js";
import { SavedViews } from "./saved_views.js";
import { SelectionCharts } from "./selection_charts.js";
import { Sparklines } from "./sparklines.js";
import { follow } from "./stream.js";
import { columnOf, keysOfColumns } from "./table_columns.js";
import { openJob, TableRows } from "./table_rows.js";
import {
  defaultColumns,
  filtersIn,
  groupKeys,
  hasDefaultColumns,
  MAX_SELECTED,
  readTableView,
  withoutFilters,
  writeTableView,
} from "./table_view.js";
import { VirtualRows } from "./virtual_rows.js";

const MAX_GROUPED = 2000; // jobs that are loaded for groups
const SAMPLED = 50; // first jobs that decide what columns are like
const VALUES_INTERVAL = 5000; // milliseconds between two reads of columns whose values change

const parameters = () => new URLSearchParams(location.search);
/** @type {TableView} */
const view = readTableView(parameters(), evaluationOf(data.jobs));
const selected = new Set(view.selected);
/** @type {Set<string>} */
const closed = new Set();
/** @type {Map<string, Group>} */
let groups = new Map();

const jobs = new JobList(data, requested, (isNew) => {
  showEvaluation();
  if (isNew === false) showValues();
  else show();
});
const sparklines = new Sparklines((id) => table.refresh(id));
/** @type {JobNotes | null} */
let notes = null; // of a plugin
/** @type {Row[]} */
let visibleJobs = [];
const charts = new SelectionCharts();
const rows = new TableRows({
  selected,
  job: (id) => jobs.get(id),
  group: (id) => shownGroup(groups.get(id)),
  sweep: (id) => notes?.nameOf(id),
  note: (id) => notes?.changesOf(id),
  curve: (id) => sparklines.valuesOf(id),
  colour: (id) => charts.colourOf(id),
});
const table = new VirtualRows(byId("rows"), {
  scroller: byId("table-frame"),
  create: (id) => rows.create(id),
  fill: (row, id) => rows.fill(row, id),
  kindOf: (id) => rows.kindOf(id),
  visible(ids) {
    visibleJobs = ids.flatMap((id) => jobs.get(id) ?? groups.get(id)?.jobs[0] ?? []);
    if (view.columns.includes("loss"))
      sparklines.request(visibleJobs.filter((job) => job.metrics[LOSS] !== null && job.metrics[LOSS] !== undefined));
    notes?.request(visibleJobs);
  },
  nearEnd: () => {
    if (!view.group) loadMore();
  },
});
const heads = columnHeads(view, changeView);
const selection = new RowSelection(byId("rows"), heads.all, {
  rows: () => table.ids,
  jobsOf: (id) => groups.get(id)?.jobs.map((job) => job.id) ?? [id],
  isOpen: (id) => groups.has(id) && !closed.has(id),
  select,
});
const box = queryBox({ apply: (where) => changeView({ where }), edited: showEdited });

const searchField = within(byId("filters"), '[name="search"]', HTMLInputElement);
const groupColumns = () => groupKeys(view.group).map(columnOf);
/** @param {Group | undefined} group */
const shownGroup = (group) => group && { ...group, columns: groupColumns(), closed: closed.has(group.id) };

// -- reading -----------------------------------------------------------------------------------------------------------

/** The parameters of the list: the filters, the query, the order, and the keys of the columns. */
function requested() {
  const search = filtersIn(parameters());
  if (view.where) search.set("where", view.where);
  if (view.sort) search.set("sort", view.sort);
  // The values of a metric are behind its first report by seconds, in which its name alone would be unknown.
  const keys = keysOfColumns([...new Set([...view.columns, ...groupKeys(view.group)])]);
  for (const key of keys) search.append("columns", key === view.evaluation ? `${METRIC}${key}` : key);
  return search;
}

let isRefused = Boolean(data.error); // the service could not read the query, so that no jobs are shown

async function reload() {
  const { where } = view;
  isRefused = false;
  try {
    await jobs.reload();
    box.showError(null);
    showEdited();
    if (view.group) await loadForGroups();
  } catch (error) {
    if (error.param !== "where") toastError(error);
    else if (where === view.where) refuse(error.message);
  }
}

/**
 * Say what is wrong with the query. The rows are those of the former one, which need not match.
 *
 * @param {string} message
 */
function refuse(message) {
  isRefused = true;
  box.showError(message);
  show();
  showEdited();
}

async function loadForGroups() {
  await jobs.load(MAX_GROUPED);
}

let failed = false; // drawing the end of the table loads more, which stops when the service does not answer

function loadMore() {
  if (failed || isRefused || !jobs.hasMore) return;
  Promise.resolve(jobs.more()).catch((error) => {
    failed = true;
    toastError(error);
    setText(byId("loaded"), loadedText());
    byId("more").hidden = false;
  });
}

// -- showing -----------------------------------------------------------------------------------------------------------

function show() {
  failed = false;
  groups = view.group ? new Map(groupsOf(jobs.all(), groupColumns()).map((group) => [group.id, group])) : new Map();
  const ids = view.group ? rowsOf([...groups.values()], closed) : jobs.order;
  const isFiltered = Boolean(view.where) || filtersIn(parameters()).size > 0;
  byId("empty").hidden = ids.length > 0;
  byId("refused").hidden = !isRefused;
  byId("no-matches").hidden = isRefused || !isFiltered;
  byId("no-jobs").hidden = isRefused || isFiltered;
  byId("table-frame").hidden = ids.length === 0;
  byId("more").hidden = !jobs.hasMore;
  table.show(ids);
  alignHeads();
  setText(byId("loaded"), loadedText());
  showSelection();
}

/** Put the heads of columns with numbers above these, and say where the rows of groups have means. */
function alignHeads() {
  const first = jobs.all().slice(0, SAMPLED);
  for (const column of orderedColumns()) {
    const head = within(document, `th[data-column="${CSS.escape(column.name)}"]`);
    if (column.isValue)
      head.classList.toggle(
        "right",
        first.some((job) => typeof column.valueOf(job) === "number"),
      );
    within(head, ".statistic").hidden = ![...groups.values()].some((group) =>
      isAveraged(group.jobs.map((job) => column.valueOf(job))),
    );
  }
}

/** Without chosen columns, the table has the metric of the evaluations of the jobs that it shows. */
function showEvaluation() {
  const first = jobs.all().slice(0, SAMPLED);
  const evaluation = evaluationOf(first);
  if (!first.length || evaluation === view.evaluation) return;
  const isDefault = hasDefaultColumns(view);
  view.evaluation = evaluation;
  if (!isDefault) return;
  view.columns = defaultColumns(evaluation);
  table.ids = []; // those of jobs that may no longer be loaded
  showColumns();
}

/** While the text of the query is not applied, or has an error, the rows are those of the former one. */
function showEdited() {
  byId("table-frame").classList.toggle("former", !box.isApplied || isRefused);
  setText(byId("loaded"), loadedText());
}

/** Show changed values of the jobs that are in the table. */
function showValues() {
  if (view.group) show();
  else {
    table.ids = jobs.order;
    table.refresh();
    table.schedule();
  }
}

function loadedText() {
  if (!box.isApplied) return "Enter applies the query";
  if (isRefused) return jobs.order.length ? "The query has an error; these are the jobs of the former query" : "";
  const size = jobs.order.length;
  const text = `${count(size)} ${size === 1 ? "job" : "jobs"}${jobs.hasMore ? " loaded" : ""}`;
  return view.group ? `${text} in ${count(groups.size)} ${groups.size === 1 ? "group" : "groups"}` : text;
}

/** Show the columns of the view: their heads, widths and places. */
function showColumns() {
  const columns = orderedColumns();
  const values = columns.filter((column) => column.isValue).length;
  const lines = {
    values: Math.min(4, values),
    progress: Number(view.columns.includes("progress")),
    "last-line": Number(view.columns.includes("loss") || view.columns.includes("age")),
  };
  for (const [name, size] of Object.entries(lines)) byId("jobs").style.setProperty(`--${name}`, String(size));
  rows.use(columns);
  heads.show(columns);
  showWidths(columns, view);
  table.rebuild();
  alignHeads();
}

/** Pinned columns are the first ones. */
const orderedColumns = () =>
  [
    ...view.columns.filter((name) => view.fixed.includes(name)),
    ...view.columns.filter((name) => !view.fixed.includes(name)),
  ].map(columnOf);

// -- the view is stored in the address ---------------------------------------------------------------------------------

/** @param {(address: URLSearchParams) => void} change */
function storeAddress(change = () => {}) {
  const changed = writeTableView(view, parameters());
  change(changed);
  for (const [name, value] of [...changed]) if (value === "") changed.delete(name);
  history.replaceState(null, "", urlOf(`/jobs${changed.size ? `?${changed}` : ""}`));
  showAddress();
}

/** Let the links of the page lead to what the address has. */
function showAddress() {
  const address = parameters();
  rememberTable(address);
  address.delete("job");
  byId("reset").hidden = address.size === 0;
  byId("show-all", HTMLAnchorElement).href = urlOf(`/jobs?${withoutFilters(address)}`);
}

function showGrouping() {
  byId("jobs").dataset.group = view.group;
  byId("grouped").hidden = !view.group;
  setText(
    within(byId("grouped"), "b"),
    groupColumns()
      .map(({ label }) => label)
      .join(", "),
  );
}

/**
 * Change fields of the view, and show what follows from them.
 *
 * @param {Partial<TableView>} values
 */
function changeView(values, { isResize = false } = {}) {
  const before = requested().toString();
  Object.assign(view, values);
  if (isResize) {
    showWidths(orderedColumns(), view);
    return;
  }
  storeAddress();
  if ("sort" in values) heads.showSort();
  if ("columns" in values || "fixed" in values) showColumns();
  else if ("widths" in values) showWidths(orderedColumns(), view);
  showGrouping();
  if (requested().toString() !== before) {
    byId("table-frame").scrollTop = 0;
    reload();
  } else if ("group" in values) {
    show();
    if (view.group) loadForGroups().catch(toastError);
  }
}

/**
 * Show a saved view.
 *
 * @param {URLSearchParams} saved
 */
function open(saved) {
  history.replaceState(null, "", urlOf(`/jobs${saved.size ? `?${saved}` : ""}`));
  location.reload();
}

/** @type {number | undefined} */
let inputTimer;
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", (event) => {
  if (event.target === byId("where")) return;
  clearTimeout(inputTimer);
  inputTimer = setTimeout(applyFilters, 200);
});

/** Apply the filters of the form. */
function applyFilters() {
  const before = requested().toString();
  storeAddress((address) => {
    for (const name of ["status", "search", "archived"]) address.delete(name); // always in the same order
    for (const one of document.querySelectorAll("[data-statuses]:checked")) {
      for (const status of one.dataset.statuses?.split(" ") ?? []) address.append("status", status);
    }
    address.set("search", searchField.value.trim());
    if (byId("archived", HTMLInputElement).checked) address.set("archived", "only");
    if (byId("mine", HTMLInputElement).checked) address.set("created_by", visitor.name);
    else if (address.get("created_by") === visitor.name) address.delete("created_by");
  });
  if (requested().toString() !== before) reload();
}

/**
 * Remove a filter that a plugin shows.
 *
 * @param {string} name
 */
export function removeFilter(name) {
  storeAddress((address) => address.delete(name));
  reload();
}

/**
 * Show the notes of a plugin on the jobs.
 *
 * @param {JobNotes} made
 */
export function connectNotes(made) {
  notes = made;
  notes.request(visibleJobs);
}

/** Show the notes again after a change. */
export function showNotes() {
  table.refresh();
  showCharts(selectedJobs());
}

within(byId("grouped"), "button").addEventListener("click", () => changeView({ group: "" }));
byId("choose-columns").addEventListener("click", async () => {
  const chosen = await chooseColumns(view.columns);
  if (!chosen) return;
  changeView({ columns: chosen.columns.length ? chosen.columns : defaultColumns(view.evaluation) });
  if (chosen.added.length)
    document
      .querySelector(`th[data-column="${CSS.escape(chosen.added[0])}"]`)
      ?.scrollIntoView({ block: "nearest", inline: "nearest" });
});
byId("more").addEventListener("click", () => {
  failed = false;
  loadMore();
});

// -- the selection -----------------------------------------------------------------------------------------------------

const selectedJobs = () => [...selected].flatMap((id) => jobs.get(id) ?? []);

function showSelection() {
  const chosen = selectedJobs();
  selection.show(chosen.length, jobs.order.length);
  showSelected(chosen, selected.size - chosen.length);
  showCharts(chosen);
}

/** @param {Row[]} chosen */
function showCharts(chosen) {
  const isOpen = view.charts && chosen.length > 0;
  byId("toggle-charts").hidden = chosen.length === 0;
  byId("toggle-charts").setAttribute("aria-pressed", String(isOpen));
  byId("charts-panel").hidden = !isOpen;
  byId("workspace").classList.toggle("with-charts", isOpen);
  if (isOpen)
    charts
      .show(withDistinctNames(chosen.map(({ id, name }) => ({ id, name: notes?.changesOf(id) ?? name }))))
      .then(() => table.refresh(), toastError);
}

/**
 * @param {string[]} ids
 * @param {boolean} isSelected
 */
function select(ids, isSelected) {
  for (const id of ids)
    if (isSelected) selected.add(id);
    else selected.delete(id);
  view.selected = [...selected].slice(0, MAX_SELECTED);
  storeAddress();
  showSelection();
  table.refresh();
}

byId("rows").addEventListener("click", (event) => {
  const id = around(event, ".toggle-group")?.closest("tr")?.dataset.id;
  if (!id) return;
  if (closed.has(id)) closed.delete(id);
  else closed.add(id);
  show();
});
byId("clear").addEventListener("click", () => select([...selected], false));
byId("toggle-charts").addEventListener("click", () => {
  changeView({ charts: !view.charts });
  showSelection();
});

connectActions(selectedJobs, (name, results) => {
  const shown = parameters().get("archived") ?? "no";
  const gone = results
    .filter(
      ({ answer }) =>
        name === "delete" || (shown === "no" && answer.archived) || (shown === "only" && !answer.archived),
    )
    .map(({ job }) => job.id);
  for (const id of gone) jobs.remove(id);
  let isBack = false;
  for (const { job, answer } of results)
    if (!gone.includes(job.id)) isBack = !jobs.update(job.id, { ...rowFields(answer), values: job.values }) || isBack;
  show();
  select(name === "cancel" ? [...selected] : gone, false);
  if (isBack) reload();
});

byId("rows").addEventListener("click", openJob);
byId("rows").addEventListener("auxclick", openJob);

// -- live updates ------------------------------------------------------------------------------------------------------

/** @type {number | undefined} */
let newestTimer;
function scheduleNewest() {
  newestTimer ??= setTimeout(() => {
    newestTimer = undefined;
    jobs.refresh();
  }, 300);
}

const statusFilter = () => parameters().getAll("status");

follow("/v1/stream", {
  onState(state) {
    showConnection(state);
    if (state === "live") jobs.refresh();
  },
  on: {
    status({ job_id: id, status, status_message, progress }) {
      const job = jobs.get(id);
      if (!job) {
        scheduleNewest();
        return;
      }
      if (TERMINAL.has(status)) {
        sparklines.reload(id);
        scheduleNewest();
      }
      jobs.update(id, { status, status_message, progress: progress ?? job.progress });
      table.refresh(id);
      if (statusFilter().length && !statusFilter().includes(status)) removeRowLater(id);
    },
    metrics(event) {
      const { job_id: id, values, progress } = event;
      const job = jobs.get(id);
      if (!job) return;
      const { loss, ...change } = metricsChange(job, event);
      jobs.update(id, change);
      table.refresh(id);
      if (loss !== undefined && progress) sparklines.add(id, progress.step, loss);
      if (!job.evaluation_metric && mayEvaluate(values)) scheduleNewest();
    },
    reset: () => reload(),
  },
});

/**
 * Remove a job that no longer matches the filter, after a delay in which its new status is visible.
 *
 * @param {string} id
 */
function removeRowLater(id) {
  setTimeout(() => {
    const job = jobs.get(id);
    if (!job || statusFilter().length === 0 || statusFilter().includes(job.status)) return;
    jobs.remove(id);
    show();
  }, 3000);
}

setInterval(() => {
  const isActive = jobs
    .all()
    .slice(0, 50)
    .some((job) => !TERMINAL.has(job.status));
  if (!document.hidden && isActive && (keysOfColumns(view.columns).some((key) => key !== view.evaluation) || view.sort))
    jobs.refresh();
}, VALUES_INTERVAL);

new SavedViews(() => writeTableView(view, parameters()), open);
box.set(view.where);
if (data.error) box.showError(data.error);
showColumns();
show();
showAddress();
showGrouping();
if (view.group) loadForGroups().catch(toastError);
formatTimes();
if (searchField.value.trim() !== (parameters().get("search") ?? "")) applyFilters(); // typed before the script ran
