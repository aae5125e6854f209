// The table of jobs: filters in the address, pages as they are needed, rows that change while one looks.

import { call, query } from "./api.js";
import { asNumber, count } from "./format.js";
import { Members } from "./members.js";
import { byId, confirmed, data, localTimes, mayChange, say, setText, showLink, visitor } from "./page.js";
import { brief, done, fillRow, LOSS, newRow } from "./rows.js";
import { Curves } from "./sparks.js";
import { follow } from "./stream.js";
import { VirtualRows } from "./virtual.js";

const PAGE = 200;
const SORTED = 10_000; // jobs that are read to be sorted, as the API sorts by age alone; as many again for a wish for more
const REDRAWN = 400; // milliseconds between two looks of a table that is being read
const MOST_COMPARED = 20;
const FINAL = new Set(["succeeded", "failed", "cancelled"]);

const jobs = new Map(data.jobs.map((job) => [job.id, job]));
let order = [];
let hasMore = data.has_more;
let lastId = data.last_id;
let loading = null;
let round = 0; // goes up when what is being read is not wanted any more
let most = SORTED;
const chosen = new Set();
const curves = new Curves((id) => table.refresh(id));
const members = new Members(() => table.refresh());

const parameters = () => new URLSearchParams(location.search);
const filters = () => {
  const found = parameters();
  for (const own of ["sort", "limit", "after"]) found.delete(own);
  for (const [name, value] of [...found]) if (value === "") found.delete(name);
  return found;
};
const sorting = () => {
  const [key, way] = (parameters().get("sort") ?? "age").split(":");
  return { key, descending: way ? way === "desc" : key === "age" };
};

const table = new VirtualRows(byId("rows"), {
  columns: 9,
  create: newRow,
  fill: (row, id) => fillRow(row, jobs.get(id), { chosen: chosen.has(id), curve: curves.of(id), note: members.of(id) }),
  seen: (ids) => {
    const found = ids.map((id) => jobs.get(id));
    curves.want(found.filter((job) => job.metrics[LOSS] !== null && job.metrics[LOSS] !== undefined));
    members.want(found);
  },
  nearEnd: () => { if (hasMore && !sortsHere()) loadMore(); },
});

// -- what is loaded, and in which order --------------------------------------------------------------------------

const KEYS = {
  status: (job) => job.status,
  name: (job) => job.name.toLowerCase(),
  progress: done,
  loss: (job) => asNumber(job.metrics[LOSS] ?? NaN),
  gpus: (job) => job.spec.gpus ?? 1,
  made: (job) => `${job.spec.strategy} ${job.spec.precision} ${job.spec.lora_rank ?? 0}`,
  owner: (job) => job.created_by,
};

/** Whether the order is one that only the browser makes, of all that it has read. */
const sortsHere = () => Boolean(KEYS[sorting().key]);

function show() {
  const { key, descending } = sorting();
  for (const head of document.querySelectorAll("th[data-sort]")) {
    if (head.dataset.sort === key) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  order = [...jobs.keys()].sort(KEYS[key] ? by(KEYS[key], descending) : byAge(descending));
  table.show(order);
  byId("empty").hidden = order.length > 0;
  byId("none-match").hidden = filters().size === 0;
  byId("none-yet").hidden = filters().size > 0;
  byId("jobs").hidden = order.length === 0;
  byId("more").hidden = !hasMore;
  setText(byId("loaded"), amount());
}

/** How many there are, as far as is known. */
function amount() {
  const words = `${count(order.length)} ${order.length === 1 ? "job" : "jobs"}`;
  if (!hasMore) return words;
  if (!sortsHere()) return `${words} loaded`;
  return loading ? `${words} loaded; loading more to sort …` : `the newest ${words}, sorted; older jobs are not included`;
}

function by(key, descending) {
  const way = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [key(jobs.get(one)), key(jobs.get(other))];
    if (a === b || (Number.isNaN(a) && Number.isNaN(b))) return one < other ? 1 : -1;
    if (Number.isNaN(a)) return 1; // what has none is last, either way
    if (Number.isNaN(b)) return -1;
    return a < b ? -way : way;
  };
}

/** Ids sort by the time of creation. */
const byAge = (descending) => (one, other) => ((one < other) === descending ? 1 : -1);

function add(found) {
  for (const job of found) jobs.set(job.id, brief(job));
}

/** A page more, or as many as are sorted. */
function loadMore() {
  loading ??= loadAll(round).then(() => true, complain).then((good) => {
    loading = null;
    // The end of a table asks for more as it is drawn: not where the service does not answer.
    if (good || sortsHere()) show();
  });
  setText(byId("loaded"), amount());
  return loading;
}

async function loadAll(mine) {
  let shown = performance.now();
  do {
    const page = await call(`/v1/jobs${joined(filters(), { limit: PAGE, after: lastId, order: oldestFirst() ? "asc" : "desc" })}`);
    add(page.data);
    hasMore = page.has_more;
    lastId = page.last_id ?? lastId;
    if (performance.now() - shown > REDRAWN) { show(); shown = performance.now(); }
  } while (hasMore && sortsHere() && jobs.size < most && mine === round);
}

const oldestFirst = () => sorting().key === "age" && !sorting().descending;
const joined = (first, more) => query(Object.fromEntries([...new Set(first.keys())].map((name) => [name, first.getAll(name)]).concat(Object.entries(more))));

async function reload() {
  round += 1;
  most = SORTED;
  await loading;
  const wanted = filters();
  const page = await call(`/v1/jobs${joined(wanted, { limit: PAGE, order: oldestFirst() ? "asc" : "desc" })}`);
  if (wanted.toString() !== filters().toString()) return;
  jobs.clear();
  add(page.data);
  hasMore = page.has_more;
  lastId = page.last_id;
  for (const id of chosen) if (!jobs.has(id)) chosen.delete(id);
  showChosen();
  show();
  if (hasMore && sortsHere()) loadMore();
}

// -- filters and sorting live in the address -------------------------------------------------------------------------

function go(change) {
  const found = parameters();
  change(found);
  for (const [name, value] of [...found]) if (value === "") found.delete(name);
  history.replaceState(null, "", `/jobs${found.size ? `?${found}` : ""}`);
}

let typing;
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(narrow, 200);
});

/** Of a sweep that the address names: its name, and the way to its comparison. */
async function showSweep() {
  const id = filters().get("sweep");
  if (!id) return;
  const sweep = await members.learn(id);
  if (!sweep) return;
  const place = byId("of-sweep");
  place.hidden = false;
  place.querySelector("a").href = `/compare${query({ sweep: id })}`;
  setText(place.querySelector("a"), sweep.name);
}

byId("of-sweep").querySelector("button").addEventListener("click", () => {
  byId("of-sweep").hidden = true;
  go((found) => found.delete("sweep"));
  reload().catch(complain);
});

/** Take the filters as they stand in the form. */
function narrow() {
  const before = filters().toString();
  go((found) => {
    for (const own of ["status", "search"]) found.delete(own); // one order, whichever was chosen first
    for (const box of document.querySelectorAll("[data-statuses]:checked")) {
      for (const status of box.dataset.statuses.split(" ")) found.append("status", status);
    }
    found.set("search", byId("filters").elements.search.value.trim());
    if (byId("mine").checked) found.set("created_by", visitor.name);
    else if (found.get("created_by") === visitor.name) found.delete("created_by");
  });
  if (filters().toString() !== before) reload().catch(complain);
}

document.querySelector("thead").addEventListener("click", (event) => {
  const head = event.target.closest("th[data-sort]");
  if (!head) return;
  const now = sorting();
  const wasAge = now.key === "age";
  const descending = head.dataset.sort === now.key ? !now.descending : head.dataset.sort === "age";
  go((found) => found.set("sort", head.dataset.sort === "age" && descending ? "" : `${head.dataset.sort}:${descending ? "desc" : "asc"}`));
  if (sorting().key === "age" || wasAge && oldestFirst()) reload().catch(complain);
  else { show(); if (hasMore && sortsHere()) loadMore(); }
});

byId("more").addEventListener("click", () => { most = jobs.size + SORTED; loadMore(); });

// -- the selection ---------------------------------------------------------------------------------------------------

const cancellable = () => [...chosen].map((id) => jobs.get(id)).filter((job) => job && !FINAL.has(job.status) && mayChange(job.created_by));

function showChosen() {
  byId("selection").hidden = chosen.size === 0;
  setText(byId("chosen"), `${chosen.size} selected`);
  byId("compare").hidden = chosen.size < 2 || chosen.size > MOST_COMPARED;
  byId("compare").href = `/compare${query({ job: [...chosen] })}`;
  byId("cancel").hidden = cancellable().length === 0;
}

byId("rows").addEventListener("change", (event) => {
  const row = event.target.closest("tr.job");
  if (!row) return;
  if (event.target.checked) chosen.add(row.dataset.id);
  else chosen.delete(row.dataset.id);
  showChosen();
});

byId("clear").addEventListener("click", () => { chosen.clear(); showChosen(); table.refresh(); });

byId("cancel").addEventListener("click", async () => {
  const wanted = cancellable();
  const words = wanted.length === 1 ? `Cancel ${wanted[0].name}?` : `Cancel ${wanted.length} jobs?`;
  if (!(await confirmed(byId("sure"), words, "Running jobs will stop. Checkpoints and metrics are kept."))) return;
  const answers = await Promise.allSettled(wanted.map((job) => call(`/v1/jobs/${job.id}/cancel`, { method: "POST" })));
  const refused = answers.filter((answer) => answer.status === "rejected");
  for (const answer of answers) if (answer.status === "fulfilled") update(answer.value.id, brief(answer.value));
  chosen.clear();
  showChosen();
  table.refresh();
  if (refused.length) say(`${refused.length} could not be cancelled: ${refused[0].reason.message}`, { bad: true });
  else say(`Cancelling ${wanted.length === 1 ? "one job" : `${wanted.length} jobs`}.`);
});

// -- live ------------------------------------------------------------------------------------------------------------

function update(id, change) {
  const job = jobs.get(id);
  if (!job) return;
  jobs.set(id, { ...job, ...change });
  table.refresh(id);
}

/** Some job that is not here is new, or passes the filters now: it is among the newest, or is found by scrolling. */
let fetching;
function welcome() {
  fetching ??= setTimeout(async () => {
    fetching = undefined;
    const page = await call(`/v1/jobs${joined(filters(), { limit: 50 })}`).catch(() => null);
    if (!page || oldestFirst()) return;
    const fresh = page.data.filter((job) => !jobs.has(job.id));
    for (const job of fresh) jobs.set(job.id, brief(job));
    if (fresh.length) show();
  }, 300);
}

const wantsStatus = () => filters().getAll("status");

follow("/v1/stream", {
  onState(state) {
    showLink(state);
    if (state === "live") refreshFirst();
  },
  on: {
    status(told) {
      if (!jobs.has(told.job_id)) { welcome(); return; }
      const { status, status_message, progress } = told;
      if (FINAL.has(status)) curves.renew(told.job_id);
      update(told.job_id, { status, status_message, progress: progress ?? jobs.get(told.job_id).progress });
      if (wantsStatus().length && !wantsStatus().includes(status)) leave(told.job_id);
    },
    metrics(told) {
      if (!jobs.has(told.job_id)) return;
      const loss = told.values[LOSS];
      update(told.job_id, { ...(loss !== undefined && { metrics: { [LOSS]: loss } }), progress: told.progress });
      if (loss !== undefined && told.progress) curves.add(told.job_id, told.progress.step, loss);
    },
    reset: () => reload().catch(complain),
  },
});

/** It no longer passes the filter; it stays for a moment, so that one sees why it goes. */
function leave(id) {
  setTimeout(() => {
    const job = jobs.get(id);
    if (!job || wantsStatus().length === 0 || wantsStatus().includes(job.status)) return;
    jobs.delete(id);
    show();
  }, 3000);
}

/** What happened between the server's drawing and the stream. */
async function refreshFirst() {
  if (oldestFirst()) return;
  const page = await call(`/v1/jobs${joined(filters(), { limit: 50 })}`).catch(() => null);
  if (!page) return;
  for (const job of page.data) jobs.set(job.id, brief(job));
  show();
}

function complain(error) {
  say(error.message, { bad: true });
}

show();
showSweep().catch(() => {}); // the table is whole without
localTimes();
if (byId("filters").elements.search.value.trim() !== (parameters().get("search") ?? "")) narrow(); // typed meanwhile
if (sortsHere()) { if (hasMore) loadMore(); }
else if (oldestFirst()) reload().catch(complain);
