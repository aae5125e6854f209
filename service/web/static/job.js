// The page of one job: rendered from the embedded job, then updated by the job's stream.

import { call, callAll } from "./api.js";
import { connectChartTools, connectCombination } from "./chart_tools.js";
import { Charts } from "./charts.js";
import { marksOf } from "./chart_marks.js";
import "./copy_buttons.js";
import { CurveStore } from "./curves.js";
import { connectAbout } from "./job_about.js";
import { connectActions, showActions } from "./job_actions.js";
import { JobData } from "./job_data.js";
import { JobHistory, showAttempts, showCheckpoints } from "./job_history.js";
import { JobMedia } from "./job_media.js";
import { JobSamples } from "./job_samples.js";
import { TERMINAL } from "./job_status.js";
import { showJob } from "./job_summary.js";
import { JobTabs } from "./job_tabs.js";
import { LogView } from "./log_view.js";
import { showUses } from "./model_use.js";
import { afterPaint, byId, data, showConnection, toastError, within } from "./page.js";
import { follow } from "./stream.js";
import { isSystem } from "./system_charts.js";

const TEXT_TASKS = new Set(["causal_lm", "sequence_classification", "text_embedding"]); // whose data has accounts
const REFRESH_INTERVAL = 5000; // milliseconds; refreshes clocks, and a finished job, which may have been retried

/** @type {Job} */
let job = data.job;
const root = `/v1/jobs/${job.id}`;
const tabs = new JobTabs(job);
const store = new CurveStore(job.id, job.attempt?.execution ?? null, job.attempt?.resumed_from_step);
const charts = new Charts(job, store);
const history = new JobHistory(job.id, showMarks);
const samples = new JobSamples(job.id);
const accounts = new JobData(job.id);
const media = new JobMedia(job.id);
/** @type {import("./job_artifacts.js").JobArtifacts | undefined} */
let artifacts;
const logs = new LogView(job, () => listen());
/** @type {{ close: () => void, last: () => string | null } | undefined} */
let stream;

/** @param {Partial<Job>} change */
function update(change) {
  const wasTerminal = TERMINAL.has(job.status);
  job = { ...job, ...change };
  charts.setJob(job);
  logs.job = job;
  if (wasTerminal && !TERMINAL.has(job.status)) listen(); // it was retried
  showJob(job, store.series);
  showActions(job);
  showUses(job);
  showCurvesSection();
  showScript();
}

/** @type {number | null} */
let attemptOfScript = null;

/** Show the batch script of the current attempt on its tab. */
async function showScript() {
  const { number, submitted_at: submittedAt } = job.attempt ?? {};
  if (tabs.current !== "spec" || !submittedAt || number === attemptOfScript) return;
  attemptOfScript = number ?? null;
  const response = await call(`${root}/script`).catch(toastError);
  if (response) byId("script-text").textContent = response.script;
  else attemptOfScript = null;
}

// -- reads of the API, at most one of each kind in a second ------------------------------------------------------------

/**
 * A function that runs `work` at once, and once more after a second if it is called meanwhile.
 *
 * @param {() => Promise<void>} work
 */
function throttled(work) {
  /** @type {Promise<void> | null} */
  let running = null;
  let requested = false;
  return function run() {
    requested = true;
    running ??= (async () => {
      while (requested) {
        requested = false;
        await work().catch(() => {}); // the banner shows a lost connection, and the next call reads again
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
      running = null;
    })();
  };
}

const readJob = throttled(async () => update(await call(root)));

/** @type {Api.AttemptResource[]} */
let attempts = [];

const readAttempts = throttled(async () => {
  const { data } = await call(`${root}/attempts?limit=200&order=desc`);
  attempts = data.reverse();
  showAttempts(attempts);
  logs.setAttempts(attempts.map((attempt) => attempt.number));
  showMarks();
});

function showMarks() {
  charts.setMarks(marksOf(attempts, history.events));
}

const readCheckpoints = throttled(async () => {
  const checkpoints = await callAll(`${root}/checkpoints`);
  showCheckpoints(job.id, checkpoints, TERMINAL.has(job.status));
  charts.setMarks({ checkpoint: checkpoints.map((one) => ({ step: one.step, time: one.created_at })) });
});

const readSamples = throttled(async () => {
  if (job.spec.evaluation?.samples) await samples.load();
});

const readData = throttled(async () => {
  if (TEXT_TASKS.has(job.spec.task)) await accounts.load();
});

const readMedia = throttled(() => media.load());

const readNewEvents = throttled(() => history.loadNew());

const readCurves = throttled(async () => {
  await store.load().finally(() => {
    store.complete = true;
    charts.redraw();
  });
  charts.showLoaded();
  showJob(job, store.series);
  showCurvesSection();
});

/** Hide the charts of a job that ended before its first step, so that its log comes first. State what a program can report. */
function showCurvesSection() {
  const keys = [...store.series.keys(), ...Object.keys(job.metrics)];
  const reported = keys.some((key) => !isSystem(key));
  const isEmpty = keys.length === 0 && (TERMINAL.has(job.status) || job.spec.task === "script");
  const isProgram = job.spec.task === "script" && ["running", "succeeded"].includes(job.status);
  byId("curves").classList.toggle("empty", isEmpty);
  byId("no-metrics").hidden = reported || !(isProgram || (isEmpty && TERMINAL.has(job.status)));
  within(byId("no-metrics"), "span").hidden = !isProgram;
}

// -- live updates ------------------------------------------------------------------------------------------------------

let wasLost = false;

function listen() {
  const after = stream?.last() ?? job.sequence;
  stream?.close();
  stream = follow(`${root}/stream?rank=${encodeURIComponent(logs.rank)}`, { after, onState, on: handlers });
}

/** @param {"live" | "lost" | ""} state */
function onState(state) {
  showConnection(state);
  if (state === "live" && wasLost) {
    readJob();
    readNewEvents();
    readAttempts();
    readCheckpoints();
    readSamples();
    readData();
    readCurves();
  }
  wasLost = state === "lost";
}

/** @type {Handlers} */
const handlers = {
  status(change) {
    update({ ...change, progress: change.progress ?? job.progress });
    readNewEvents();
    readJob();
    readAttempts();
    if (TERMINAL.has(change.status)) {
      readCheckpoints();
      readMedia();
    }
  },
  event(event) {
    history.add(event);
    readAttempts();
    if (event.type.startsWith("checkpoint")) readCheckpoints();
    if (event.type === "worker.samples_written") readSamples();
    if (event.type === "worker.data_account") readData();
    if (event.type === "curves_restarted") {
      store.clear();
      readCurves();
    } // points were deleted
  },
  metrics(/** @type {MetricsReport} */ report) {
    const { hasNewMetric, unknownCut, resumedFrom } = store.add(report);
    charts.addPoints(report);
    if (resumedFrom !== null) readAttempts(); // the attempt has its new resumed_from_step now
    const newest = Object.fromEntries(report.points.map((point) => [point.key, point.value]));
    update({ progress: report.progress ?? job.progress, metrics: { ...job.metrics, ...newest } });
    if (hasNewMetric) {
      charts.addMissing();
      showCurvesSection();
      readJob();
    } // parameters come with the first points
    if (unknownCut) store.clear();
    if (unknownCut || store.isLong) readCurves();
    charts.redraw(Object.keys(newest));
  },
  checkpoint({ step }) {
    update({ last_checkpoint_step: step });
    readCheckpoints();
  },
  log: (entry) => logs.add(entry),
};

// -- actions of the user -----------------------------------------------------------------------------------------------

connectAbout(
  () => job,
  (changed) => update(changed),
);
connectActions(
  () => job,
  (changed, name, body) => {
    update(changed);
    if (name === "retry" && body?.from === "scratch") {
      store.clear();
      readCurves();
    }
  },
);

/** What stands above the artifacts, which must not move. */
const firstReads = afterPaint().then(() =>
  Promise.allSettled([media.load(), job.spec.evaluation?.samples ? samples.load() : null]),
);

/** @type {Record<string, () => Promise<unknown>>} what a tab needs, scripts included, that is read when it is shown. */
const CONTENTS = {
  async media() {
    const { JobArtifacts } = await import("./job_artifacts.js");
    await firstReads;
    artifacts ??= new JobArtifacts(job.id, () => TERMINAL.has(job.status));
    artifacts.open();
  },
  async spec() {
    showScript();
    const { showCode } = await import("./job_code.js");
    showCode(job);
  },
  async history() {
    const { showLineage } = await import("./job_lineage.js");
    await showLineage(job);
  },
};

setInterval(() => {
  if (document.hidden) return;
  if (TERMINAL.has(job.status)) {
    readJob();
    return;
  }
  readMedia();
  showJob(job, store.series);
  if (attempts.some((attempt) => !attempt.ended_at)) showAttempts(attempts);
}, REFRESH_INTERVAL);

showActions(job);
showJob(job, store.series);
showUses(job);
showCurvesSection();
connectChartTools(
  charts.view,
  (values) => charts.change(values),
  () => charts.axes(),
);
connectCombination(
  charts.view,
  (values) => charts.change(values),
  () => [...store.series.keys()].sort(),
);
tabs.onShow((name) => {
  charts.setHeadline(name === "overview");
  media.layOut();
  logs.shown();
  CONTENTS[name]?.().catch(toastError);
});
charts.showPreview(data.preview);
afterPaint().then(() => {
  readCurves();
  readAttempts();
  readCheckpoints();
  readData();
  history.loadOlder().catch(() => {});
  logs.load();
  listen();
});
