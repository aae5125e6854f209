// The page of one job: drawn by the server, then kept up by the job's stream.

import { actOn, showActions } from "./actions.js";
import { call } from "./api.js";
import "./copy.js";
import { Charts } from "./charts.js";
import { CurveStore } from "./curves.js";
import { showJob } from "./facts.js";
import { History, showAttempts, showCheckpoints } from "./history.js";
import { LogView } from "./logs.js";
import { marksOf } from "./marks.js";
import { byId, data, say, showLink } from "./page.js";
import { areHeld, follow } from "./stream.js";

const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const PAUSE = 5000; // milliseconds between two looks at what no stream tells: clocks, and a job that was over

let job = data.job;
const root = `/v1/jobs/${job.id}`;
const store = new CurveStore(job.id, job.attempt?.execution ?? null);
const charts = new Charts(data.charts, store);
const history = new History(job.id, showMarks);
const logs = new LogView(job, () => listen());
let stream;

function update(change) {
  const wasOver = FINAL.has(job.status);
  job = { ...job, ...change };
  if (wasOver && !FINAL.has(job.status)) listen(); // it was tried again, here or elsewhere
  showJob(job);
  showActions(job);
}

// -- what the API is asked for: at once, then at most once a second --------------------------------------------------

function again(work) {
  let running = null;
  let wanted = false;
  return function run() {
    wanted = true;
    running ??= (async () => {
      while (wanted) {
        wanted = false;
        await work().catch(() => {}); // told by the banner; what comes next asks again
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
      running = null;
    })();
  };
}

const readJob = again(async () => update(await call(root)));

let attempts = [];

const readAttempts = again(async () => {
  ({ data: attempts } = await call(`${root}/attempts`));
  showAttempts(attempts);
  logs.setAttempts(attempts.map((attempt) => attempt.number));
  showMarks();
});

function showMarks() {
  charts.mark(marksOf(attempts, history.events));
}

const readCheckpoints = again(async () => {
  const { data: checkpoints } = await call(`${root}/checkpoints`);
  showCheckpoints(job.id, checkpoints);
  charts.mark({ checkpoint: checkpoints.map((one) => ({ step: one.step, time: one.created_at })) });
  byId("export").hidden = !(job.status === "succeeded" && job.spec.checkpoint?.export);
});

const readNews = again(() => history.newest());

const readCurves = again(async () => {
  await store.load().finally(() => { store.whole = true; });
  charts.adopt();
  charts.redraw();
  showWhetherCurves();
});

/** A job that ended before its first step has no frames in the way of its log. */
function showWhetherCurves() {
  byId("curves-of-job").hidden = FINAL.has(job.status) && store.series.size === 0;
}

// -- live ------------------------------------------------------------------------------------------------------------

let wasLost = false;

function listen() {
  const after = stream?.last() ?? job.sequence;
  stream?.close();
  stream = follow(`${root}/stream?rank=${encodeURIComponent(logs.rank)}`, { after, onState: connected, on: handlers });
}

function connected(state) {
  showLink(state);
  if (state === "live" && wasLost) { readJob(); readNews(); readAttempts(); readCheckpoints(); readCurves(); }
  wasLost = state === "lost";
}

const handlers = {
  status(told) {
    update({ ...told, progress: told.progress ?? job.progress });
    readNews();
    readJob();
    readAttempts();
    if (FINAL.has(told.status)) readCheckpoints();
  },
  event(told) {
    history.add(told);
    readAttempts();
    if (told.type.startsWith("checkpoint")) readCheckpoints();
  },
  metrics(told) {
    const { fresh, unsure, begun } = store.add(told);
    charts.grow(told);
    if (begun !== null) readAttempts(); // the API knows from now on where it was taken up
    const newest = Object.fromEntries(told.points.map((point) => [point.key, point.value]));
    update({ progress: told.progress ?? job.progress, metrics: { ...job.metrics, ...newest } });
    if (fresh) { charts.adopt(); showWhetherCurves(); }
    if (unsure) store.clear();
    if (unsure || store.isLong) readCurves();
    charts.redraw(Object.keys(newest));
  },
  checkpoint(told) {
    update({ last_checkpoint_step: told.step });
    readCheckpoints();
  },
  log: (told) => logs.add(told),
};

// -- what the reader does --------------------------------------------------------------------------------------------

actOn(() => job, (changed, name, body) => {
  update(changed);
  if (name === "retry" && body?.from === "scratch") { store.clear(); readCurves(); }
});

byId("axis").addEventListener("change", () => charts.look({ axis: byId("axis").value }));
byId("log-scale").addEventListener("change", (event) => charts.look({ log: event.target.checked }));
byId("smooth").addEventListener("input", () => charts.look({ weight: Number(byId("smooth").value) }));
byId("whole").addEventListener("click", () => charts.zoom(null));
byId("script").addEventListener("toggle", async () => {
  if (!byId("script").open || !job.attempt?.submitted_at) return;
  const told = await call(`${root}/script`).catch((error) => say(error.message, { bad: true }));
  if (told) byId("script").querySelector("pre").textContent = told.script;
});
setInterval(() => {
  if (document.hidden || areHeld()) return;
  if (FINAL.has(job.status)) { readJob(); return; }
  showJob(job);
  if (attempts.some((attempt) => !attempt.ended_at)) showAttempts(attempts);
}, PAUSE);

showActions(job);
showJob(job);
readCurves();
readAttempts();
readCheckpoints();
history.older().catch(() => {});
logs.load();
listen();
