// The table of jobs: filters in the address, pages loaded on demand, live rows, and actions on selected jobs.

import { call, query } from "./api.js";
import { asNumber, count } from "./format.js";
import { fillRow, fractionDone, LOSS, newRow, rowFields } from "./job_rows.js";
import { TERMINAL } from "./job_status.js";
import { byId, confirmAction, data, formatTimes, mayChange, setText, showConnection, toast, toastError, visitor } from "./page.js";
import { Sparklines } from "./sparklines.js";
import { follow } from "./stream.js";
import { SweepMembers } from "./sweep_members.js";
import { VirtualRows } from "./virtual_rows.js";

const PAGE_SIZE = 200;
const NEWEST = 50; // jobs that are read again to find new ones
const SORT_LIMIT = 10_000; // jobs loaded for a sort, since the API sorts by age only; "Load more" adds as many
const REDRAW_INTERVAL = 400; // milliseconds between two redraws while pages load
const MAX_COMPARED = 20;

const jobs = new Map(data.jobs.map((job) => [job.id, job]));
let order = [];
let hasMore = data.has_more;
let lastId = data.last_id;
let loading = null;
let generation = 0; // incremented when the filters change, so that a running load stops
let limit = SORT_LIMIT;
const selected = new Set();
const sparklines = new Sparklines((id) => table.refresh(id));
const members = new SweepMembers(() => table.refresh());

const parameters = () => new URLSearchParams(location.search);
const filters = () => {
  const current = parameters();
  for (const name of ["sort", "limit", "after"]) current.delete(name);
  for (const [name, value] of [...current]) if (value === "") current.delete(name);
  return current;
};
const sorting = () => {
  const [key, direction] = (parameters().get("sort") ?? "age").split(":");
  return { key, descending: direction ? direction === "desc" : key === "age" };
};

const table = new VirtualRows(byId("rows"), {
  columns: 9,
  create: newRow,
  fill: (row, id) => fillRow(row, jobs.get(id), { selected: selected.has(id), curve: sparklines.valuesOf(id), note: members.changesOf(id) }),
  visible: (ids) => {
    const visible = ids.map((id) => jobs.get(id));
    sparklines.request(visible.filter((job) => job.metrics[LOSS] !== null && job.metrics[LOSS] !== undefined));
    members.request(visible);
  },
  nearEnd: () => { if (hasMore && !sortsInBrowser()) loadMore(); },
});

// -- loading and sorting -----------------------------------------------------------------------------------------------

const SORT_KEYS = {
  status: (job) => job.status,
  name: (job) => job.name.toLowerCase(),
  progress: fractionDone,
  loss: (job) => asNumber(job.metrics[LOSS] ?? NaN),
  gpus: (job) => job.spec.gpus ?? 1,
  strategy: (job) => `${job.spec.strategy} ${job.spec.precision} ${job.spec.lora_rank ?? 0}`,
  owner: (job) => job.created_by,
};

/** Whether the browser sorts the loaded jobs; the API sorts by age only. */
const sortsInBrowser = () => Boolean(SORT_KEYS[sorting().key]);

function show() {
  const { key, descending } = sorting();
  for (const head of document.querySelectorAll("th[data-sort]")) {
    if (head.dataset.sort === key) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  order = [...jobs.keys()].sort(SORT_KEYS[key] ? byKey(SORT_KEYS[key], descending) : byAge(descending));
  byId("empty").hidden = order.length > 0;
  byId("no-matches").hidden = filters().size === 0;
  byId("no-jobs").hidden = filters().size > 0;
  byId("jobs").hidden = order.length === 0;
  byId("more").hidden = !hasMore;
  table.show(order);
  setText(byId("loaded"), loadedText());
}

/** The number of loaded jobs, and whether there are more. */
function loadedText() {
  const loaded = `${count(order.length)} ${order.length === 1 ? "job" : "jobs"}`;
  if (!hasMore) return loaded;
  if (!sortsInBrowser()) return `${loaded} loaded`;
  return loading ? `${loaded} loaded; loading more to sort …` : `the newest ${loaded}, sorted; older jobs are not included`;
}

function byKey(key, descending) {
  const sign = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [key(jobs.get(one)), key(jobs.get(other))];
    if (a === b || (Number.isNaN(a) && Number.isNaN(b))) return one < other ? 1 : -1;
    if (Number.isNaN(a)) return 1; // jobs without a value are last in both directions
    if (Number.isNaN(b)) return -1;
    return a < b ? -sign : sign;
  };
}

/** Ids are in the order of creation. */
const byAge = (descending) => (one, other) => ((one < other) === descending ? 1 : -1);

function addJobs(loaded) {
  for (const job of loaded) jobs.set(job.id, rowFields(job));
}

/** Load one more page, or as many as a sort needs. */
function loadMore() {
  loading ??= loadPages(generation).then(() => true, toastError).then((succeeded) => {
    loading = null;
    // Drawing the end of the table loads more, so it is not drawn again if the service does not answer.
    if (succeeded || sortsInBrowser()) show();
  });
  setText(byId("loaded"), loadedText());
  return loading;
}

async function loadPages(own) {
  let shown = performance.now();
  do {
    const page = await listJobs(filters(), { limit: PAGE_SIZE, after: lastId, order: oldestFirst() ? "asc" : "desc" });
    addJobs(page.data);
    hasMore = page.has_more;
    lastId = page.last_id ?? lastId;
    if (performance.now() - shown > REDRAW_INTERVAL) { show(); shown = performance.now(); }
  } while (hasMore && sortsInBrowser() && jobs.size < limit && own === generation);
}

const oldestFirst = () => sorting().key === "age" && !sorting().descending;

/** A page of `GET /v1/jobs`; `search` has the filters. */
function listJobs(search, page) {
  const filter = Object.fromEntries([...new Set(search.keys())].map((name) => [name, search.getAll(name)]));
  return call(`/v1/jobs${query({ ...filter, ...page })}`);
}

async function reload() {
  generation += 1;
  limit = SORT_LIMIT;
  await loading;
  const requested = filters();
  const page = await listJobs(requested, { limit: PAGE_SIZE, order: oldestFirst() ? "asc" : "desc" });
  if (requested.toString() !== filters().toString()) return;
  jobs.clear();
  addJobs(page.data);
  hasMore = page.has_more;
  lastId = page.last_id;
  for (const id of selected) if (!jobs.has(id)) selected.delete(id);
  showSelection();
  show();
  if (hasMore && sortsInBrowser()) loadMore();
}

// -- filters and sorting are stored in the address ---------------------------------------------------------------------

function changeAddress(change) {
  const changed = parameters();
  change(changed);
  for (const [name, value] of [...changed]) if (value === "") changed.delete(name);
  history.replaceState(null, "", `/jobs${changed.size ? `?${changed}` : ""}`);
}

let inputTimer;
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", () => {
  clearTimeout(inputTimer);
  inputTimer = setTimeout(applyFilters, 200);
});

/** Show the name of the sweep that the address filters by, with a link to its comparison. */
async function showSweepFilter() {
  const id = filters().get("sweep");
  if (!id) return;
  const sweep = await members.load(id);
  if (!sweep) return;
  const element = byId("sweep-filter");
  element.hidden = false;
  element.querySelector("a").href = `/compare${query({ sweep: id })}`;
  setText(element.querySelector("a"), sweep.name);
}

byId("sweep-filter").querySelector("button").addEventListener("click", () => {
  byId("sweep-filter").hidden = true;
  changeAddress((address) => address.delete("sweep"));
  reload().catch(toastError);
});

/** Apply the filters of the form. */
function applyFilters() {
  const before = filters().toString();
  changeAddress((address) => {
    for (const name of ["status", "search"]) address.delete(name); // always in the same order
    for (const box of document.querySelectorAll("[data-statuses]:checked")) {
      for (const status of box.dataset.statuses.split(" ")) address.append("status", status);
    }
    address.set("search", byId("filters").elements.search.value.trim());
    if (byId("mine").checked) address.set("created_by", visitor.name);
    else if (address.get("created_by") === visitor.name) address.delete("created_by");
  });
  if (filters().toString() !== before) reload().catch(toastError);
}

document.querySelector("thead").addEventListener("click", (event) => {
  const head = event.target.closest("th[data-sort]");
  if (!head) return;
  const key = head.dataset.sort;
  const before = sorting();
  const descending = key === before.key ? !before.descending : key === "age";
  changeAddress((address) => address.set("sort", key === "age" && descending ? "" : `${key}:${descending ? "desc" : "asc"}`));
  if (sorting().key === "age") reload().catch(toastError);
  else { show(); if (hasMore && sortsInBrowser()) loadMore(); }
});

byId("more").addEventListener("click", () => { limit = jobs.size + SORT_LIMIT; loadMore(); });

// -- the selection -----------------------------------------------------------------------------------------------------

const cancellable = () => [...selected].map((id) => jobs.get(id)).filter((job) => job && !TERMINAL.has(job.status) && mayChange(job.created_by));

function showSelection() {
  byId("selection").hidden = selected.size === 0;
  setText(byId("selection-count"), `${selected.size} selected`);
  byId("compare").hidden = selected.size < 2 || selected.size > MAX_COMPARED;
  byId("compare").href = `/compare${query({ job: [...selected] })}`;
  byId("cancel").hidden = cancellable().length === 0;
}

byId("rows").addEventListener("change", (event) => {
  const row = event.target.closest("tr.job");
  if (!row) return;
  if (event.target.checked) selected.add(row.dataset.id);
  else selected.delete(row.dataset.id);
  showSelection();
});

function clearSelection() {
  selected.clear();
  showSelection();
  table.refresh();
}

byId("clear").addEventListener("click", clearSelection);

byId("cancel").addEventListener("click", async () => {
  const targets = cancellable();
  const title = targets.length === 1 ? `Cancel ${targets[0].name}?` : `Cancel ${targets.length} jobs?`;
  if (!(await confirmAction(title, "Running jobs will stop. Checkpoints and metrics are kept."))) return;
  const results = await Promise.allSettled(targets.map((job) => call(`/v1/jobs/${job.id}/cancel`, { method: "POST" })));
  const failed = results.filter((result) => result.status === "rejected");
  for (const { status, value } of results) if (status === "fulfilled") update(value.id, rowFields(value));
  clearSelection();
  if (failed.length) toast(`${failed.length} could not be cancelled: ${failed[0].reason.message}`, { bad: true });
  else toast(`Cancelling ${targets.length === 1 ? "one job" : `${targets.length} jobs`}.`);
});

// -- live updates ------------------------------------------------------------------------------------------------------

function update(id, change) {
  const job = jobs.get(id);
  if (!job) return;
  jobs.set(id, { ...job, ...change });
  table.refresh(id);
}

/** Read the newest jobs again: updates since the page was rendered, and jobs that are new or match the filters now. */
async function refreshNewest() {
  if (oldestFirst()) return;
  const page = await listJobs(filters(), { limit: NEWEST }).catch(() => null);
  if (!page) return;
  const hasNew = page.data.some((job) => !jobs.has(job.id));
  addJobs(page.data);
  if (hasNew) show();
  else table.refresh();
}

let newestTimer;
function scheduleNewest() {
  newestTimer ??= setTimeout(() => { newestTimer = undefined; refreshNewest(); }, 300);
}

const statusFilter = () => filters().getAll("status");

follow("/v1/stream", {
  onState(state) {
    showConnection(state);
    if (state === "live") refreshNewest();
  },
  on: {
    status({ job_id: id, status, status_message, progress }) {
      if (!jobs.has(id)) { scheduleNewest(); return; }
      if (TERMINAL.has(status)) sparklines.reload(id);
      update(id, { status, status_message, progress: progress ?? jobs.get(id).progress });
      if (statusFilter().length && !statusFilter().includes(status)) removeRowLater(id);
    },
    metrics({ job_id: id, values, loss_metric, progress }) {
      if (!jobs.has(id)) return;
      const loss = values[loss_metric ?? LOSS];
      update(id, { ...(loss !== undefined && { metrics: { [LOSS]: loss }, loss_metric }), progress });
      if (loss !== undefined && progress) sparklines.add(id, progress.step, loss);
    },
    reset: () => reload().catch(toastError),
  },
});

/** Remove a job that no longer matches the filter, after a delay in which its new status is visible. */
function removeRowLater(id) {
  setTimeout(() => {
    const job = jobs.get(id);
    if (!job || statusFilter().length === 0 || statusFilter().includes(job.status)) return;
    jobs.delete(id);
    show();
  }, 3000);
}

show();
showSweepFilter().catch(() => {}); // the name is optional
formatTimes();
if (byId("filters").elements.search.value.trim() !== (parameters().get("search") ?? "")) applyFilters(); // typed before the script ran
if (sortsInBrowser()) { if (hasMore) loadMore(); }
else if (oldestFirst()) reload().catch(toastError);
