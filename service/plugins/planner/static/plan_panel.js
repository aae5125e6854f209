// The plan of the text in the editor: requested while typing, and on request with an estimate of the start.

import { call, query } from "./api.js";
import { dateTime } from "./format.js";
import { byId, maybeById, setText } from "./page.js";
import { availability, showPlan } from "./plan.js";
import { connectReader, setFields, setInvalid, showError, showProblems, specText } from "./submit.js";

const PAUSE = 350; // milliseconds after the last key before a plan is requested
const RATE_LIMIT_PAUSE = 2000;
const CLUSTER_INTERVAL = 15_000;
const YAML = { "Content-Type": "application/yaml" };
const MAX_POLLS = 60; // seconds to wait for a start estimate

/** @type {Api.PlanResource | null} */
let plan = null;
/** @type {Api.ClusterResource | null} */
let cluster = null;
/** @type {AbortController | null} */
let controller = null;
/** @type {number | undefined} */
let timer;
let isStale = true; // the plan is not the one of the text
const force = maybeById("force", HTMLInputElement);
const estimate = maybeById("estimate-start", HTMLButtonElement);

connectReader({
  changed() {
    setText(byId("start-estimate"), "");
    clearTimeout(timer);
    timer = setTimeout(requestPlan, PAUSE);
  },
  spec: () => (isStale || !plan ? null : plan.spec),
  isForced: () => force?.checked ?? false,
});

async function requestPlan() {
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  setText(byId("plan-state"), "planning …");
  try {
    const made = await call("/v1/plans", { method: "POST", body: specText(), headers: YAML, signal });
    plan = made;
    setInvalid(false);
    showProblems([]);
    showPlan(made, setFields);
    showAvailability();
    showPlanState({ stale: false });
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 429) {
      timer = setTimeout(requestPlan, RATE_LIMIT_PAUSE);
      return;
    }
    setInvalid([400, 422].includes(error.status));
    showError(error);
    showPlanState({ stale: true });
  }
}

/** @param {{ stale: boolean }} options */
function showPlanState({ stale }) {
  isStale = stale;
  byId("plan").classList.toggle("stale", stale);
  setText(byId("plan-state"), stale && plan ? "last valid plan" : "");
  const label = maybeById("force-label");
  if (!label || !force) return;
  label.hidden = stale || plan?.fits !== false;
  if (label.hidden) force.checked = false;
}

estimate?.addEventListener("click", async () => {
  const text = specText();
  estimate.disabled = true;
  setText(byId("start-estimate"), "requesting …");
  try {
    const answer = await call(`/v1/plans${query({ estimate_start: "true", wait_seconds: 5 })}`, {
      method: "POST",
      body: text,
      headers: YAML,
    });
    const shown = await estimateText(answer.start_estimate);
    if (text === specText()) setText(byId("start-estimate"), shown);
  } catch (error) {
    setText(byId("start-estimate"), "");
    showError(error);
  }
  estimate.disabled = false;
});

/**
 * Wait for a start estimate, and return it as text.
 *
 * @param {Api.StartEstimateResource} estimate
 */
async function estimateText(estimate) {
  let current = estimate;
  for (let poll = 0; current.state === "waiting" && poll < MAX_POLLS; poll += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    current = await call(`/v1/start-estimates/${encodeURIComponent(current.id ?? "")}`);
  }
  return current.estimated_start
    ? `Estimated start if submitted now: ${dateTime(current.estimated_start)}.`
    : current.message;
}

function showAvailability() {
  if (plan) setText(byId("availability"), cluster ? availability(cluster, plan.spec) : "");
}

async function refreshCluster() {
  cluster = await call("/v1/cluster").catch(() => cluster);
  if (estimate) estimate.hidden = cluster?.backend !== "slurm";
  showAvailability();
}

requestPlan();
refreshCluster();
setInterval(refreshCluster, CLUSTER_INTERVAL);
