// The page of the cluster: capacity, usage by user, partitions and the service's health, refreshed every 5 seconds.

import { urlOf } from "./address.js";
import { call, query } from "./api.js";
import { bytes, count, duration, NOTHING } from "./format.js";
import { byId, data, formatTimes, make, setText, showConnection, toast, toastError, visitor, within } from "./page.js";

const REFRESH_INTERVAL = 5000;
const MAX_PAGES = 5; // pages of 200 jobs; further jobs are not in the usage by user
const RUNNING = ["running", "pausing", "cancelling"];
const WAITING = ["queued", "submitting", "pending"];

async function readAll() {
  const [cluster, jobs, health, usage] = await Promise.all([
    call("/v1/cluster"),
    activeJobs(),
    readHealth(),
    call("/v1/usage"),
  ]);
  showCluster(cluster);
  showUsage(usageByUser(jobs));
  showHealth(health, usage);
}

/** @returns {Promise<Job[]>} */
async function activeJobs() {
  /** @type {Job[]} */
  const jobs = [];
  let after = null;
  for (let number = 0; number < MAX_PAGES; number += 1) {
    const page = await call(`/v1/jobs${query({ status: [...RUNNING, ...WAITING], limit: 200, after })}`);
    jobs.push(...page.data);
    if (!page.has_more) break;
    after = page.last_id;
  }
  return jobs;
}

/** The service's health; a 503 has it, too. */
async function readHealth() {
  const response = await fetch(urlOf("/readyz"), { credentials: "same-origin" });
  return response.json();
}

/** @param {Api.ClusterResource} cluster */
function showCluster(cluster) {
  byId("snapshot-time").replaceChildren(
    ...(cluster.taken_at ? ["as of ", make("time", { datetime: cluster.taken_at })] : []),
  );
  formatTimes(byId("snapshot-time"));
  setText(byId("summary"), summary(cluster));
  byId("error").hidden = !cluster.error;
  setText(within(byId("error"), "span"), cluster.error ?? "");
  const pools = [...(cluster.slots ? [{ type: "Worker processes", ...cluster.slots }] : []), ...cluster.gpus];
  byId("no-pools").hidden = pools.length > 0;
  byId("pools").replaceChildren(...pools.map(poolItem));
  showExcluded(cluster);
  byId("partitions-card").hidden = cluster.partitions.length === 0;
  byId("partitions", HTMLTableElement).tBodies[0].replaceChildren(...cluster.partitions.map(partitionRow));
}

/**
 * The nodes that new attempts avoid. The card stays while there is a warning about nodes.
 *
 * @param {Api.ClusterResource} cluster
 */
function showExcluded(cluster) {
  const nodes = cluster.excluded_nodes ?? [];
  byId("excluded-card").hidden = nodes.length === 0 && !cluster.node_warning;
  byId("excluded", HTMLTableElement).tBodies[0].replaceChildren(...nodes.map(excludedRow));
  byId("node-warning").hidden = !cluster.node_warning;
  setText(byId("node-warning"), cluster.node_warning ?? "");
  formatTimes(byId("excluded"));
}

/** @param {Api.ExcludedNodeResource} one */
function excludedRow(one) {
  const faults = one.faults.map((fault) =>
    make(
      "div",
      {},
      make("a", { href: urlOf(`/jobs/${fault.job_id}`), class: "mono", text: fault.job_id }),
      ` ${fault.message}`,
    ),
  );
  const include = make("button", {
    type: "button",
    text: "Use again",
    onclick: () => includeNode(one.node).catch(toastError),
  });
  return make(
    "tr",
    {},
    make("td", {}, make("strong", { text: one.node })),
    make("td", { text: one.partitions.join(", ") }),
    make("td", {}, make("time", { datetime: one.until })),
    make("td", {}, `${one.cause} (${one.jobs} jobs)`, ...faults),
    make("td", {}, make("code", { text: one.drain_command })),
    make("td", {}, visitor.role === "admin" ? include : null),
  );
}

/** @param {string} node */
async function includeNode(node) {
  await call(`/v1/cluster/excluded-nodes/${node}`, { method: "DELETE" });
  toast(`Jobs use ${node} again. Faults of two further jobs exclude it again.`);
  await readAll();
}

/**
 * The state of the cluster in one sentence.
 *
 * @param {Api.ClusterResource} cluster
 */
function summary(cluster) {
  if (cluster.age_seconds === null) return "Waiting for the first scheduler poll.";
  if (cluster.slots) {
    const { free, total } = cluster.slots;
    return `Jobs run on this machine, up to ${total} worker processes at once; ${free} ${free === 1 ? "is" : "are"} free.`;
  }
  return `Nodes: ${nodeStates(cluster.nodes)}.`;
}

/** @param {Record<string, number>} nodes */
const nodeStates = (nodes) =>
  Object.entries(nodes)
    .map(([state, number]) => `${number} ${state}`)
    .join(", ") || "none";

/**
 * GPUs of one type, or worker processes; `free` is null if it is unknown.
 *
 * @param {{ type: string | null, free: number | null, total: number }} pool
 */
function poolItem({ type, free, total }) {
  const inUse = free === null || !total ? 0 : 1 - free / total;
  return make(
    "div",
    {},
    make("span", { text: type ?? "GPUs" }),
    make(
      "span",
      { class: "bar", "aria-hidden": "true" },
      make("span", { style: `width:${(inUse * 100).toFixed(1)}%` }),
    ),
    make("span", { class: "right", text: free === null ? count(total) : `${count(free)} of ${count(total)} free` }),
  );
}

/** @param {Api.PartitionResource} one */
function partitionRow(one) {
  const gpus = one.gpus.map((gpu) => `${gpu.free ?? "?"} of ${gpu.total} ${gpu.type ?? ""}`.trimEnd()).join(", ");
  const cells = [
    one.time_limit_minutes === null ? "none" : duration(one.time_limit_minutes * 60),
    one.max_nodes === null ? "any" : `up to ${one.max_nodes}`,
    nodeStates(one.nodes),
    gpus || NOTHING,
    one.groups === null ? "all" : one.groups.join(", "),
  ];
  return make(
    "tr",
    {},
    make(
      "td",
      {},
      make("strong", { text: one.name }),
      one.default ? " " : null,
      one.default ? make("small", { text: "default" }) : null,
    ),
    make("td", {}, make("span", { class: `chip ${one.state === "up" ? "good" : "wait"}`, text: one.state })),
    ...cells.map((text) => make("td", { text })),
  );
}

/**
 * The jobs and GPUs (or worker processes) of each user, largest usage first.
 *
 * @param {Job[]} jobs
 */
function usageByUser(jobs) {
  /** @type {Map<string, Usage>} */
  const users = new Map();
  for (const job of jobs) {
    const name = job.created_by;
    const user = users.get(name) ?? { name, running: 0, inUse: 0, waiting: 0, requested: 0 };
    users.set(name, user);
    const gpus = job.spec.gpus ?? 1;
    if (RUNNING.includes(job.status)) {
      user.running += 1;
      user.inUse += gpus;
    } else {
      user.waiting += 1;
      user.requested += gpus;
    }
  }
  return [...users.values()].sort(
    (a, b) => b.inUse - a.inUse || b.requested - a.requested || a.name.localeCompare(b.name),
  );
}

/** @param {Usage[]} users */
function showUsage(users) {
  byId("idle").hidden = users.length > 0;
  byId("usage", HTMLTableElement).tBodies[0].replaceChildren(
    ...users.map((user) =>
      make(
        "tr",
        {},
        make(
          "td",
          {},
          make("a", { href: urlOf(`/jobs${query({ created_by: user.name, status: "running" })}`), text: user.name }),
        ),
        ...[user.running, user.inUse, user.waiting, user.requested].map((value) =>
          make("td", { class: "right", text: count(value) }),
        ),
      ),
    ),
  );
}

/**
 * @param {any} health
 * @param {Api.UsageResource} usage
 */
function showHealth(health, usage) {
  const good = health.status === "ok";
  const chip = byId("health");
  chip.className = `chip ${good ? "good" : "bad"}`;
  setText(chip, good ? "ready" : health.status);
  const failed = Object.entries(health.checks ?? {})
    .filter(([, state]) => state !== "ok")
    .map(([name, state]) => `${name}: ${state}`);
  byId("checks").replaceChildren(...[...failed, ...(health.notes ?? [])].map((text) => make("li", { text })));
  setText(byId("disk"), `${bytes(usage.disk_bytes)} used, ${bytes(usage.free_bytes)} free`);
}

async function refresh() {
  if (document.hidden) return;
  try {
    await readAll();
    showConnection("live");
  } catch {
    showConnection("lost");
  }
}

showCluster(data.cluster);
refresh();
setInterval(refresh, REFRESH_INTERVAL);
document.addEventListener("visibilitychange", refresh);
