// What there is to run on, who has it and who waits, read again while one looks; `service/web/pages/cluster_view.py` draws it
// first.

import { call, query } from "./api.js";
import { count, duration, NOTHING, size } from "./format.js";
import { byId, localTimes, make, setText, showLink } from "./page.js";

const PAUSE = 5000;
const MOST_PAGES = 5;
const HOLDING = ["running", "pausing", "cancelling"];
const WAITING = ["queued", "submitting", "pending"];

async function read() {
  const [cluster, jobs, health, usage] = await Promise.all([call("/v1/cluster"), busy(), ready(), call("/v1/usage")]);
  showCluster(cluster);
  showOwners(owners(jobs));
  showHealth(health, usage);
}

async function busy() {
  const found = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const told = await call(`/v1/jobs${query({ status: [...HOLDING, ...WAITING], limit: 200, after })}`);
    found.push(...told.data);
    if (!told.has_more) break;
    after = told.last_id;
  }
  return found;
}

/** What the service says of itself; a 503 is an answer, too. */
async function ready() {
  const answer = await fetch("/readyz", { credentials: "same-origin" });
  return answer.json();
}

function showCluster(cluster) {
  byId("taken").replaceChildren(...(cluster.taken_at ? ["as of ", make("time", { datetime: cluster.taken_at })] : []));
  localTimes(byId("taken"));
  setText(byId("sentence"), sentence(cluster));
  byId("error").hidden = !cluster.error;
  setText(byId("error").querySelector("span"), cluster.error ?? "");
  const pools = [...(cluster.slots ? [{ type: "Worker processes", ...cluster.slots }] : []), ...cluster.gpus];
  byId("no-pools").hidden = pools.length > 0;
  byId("pools").replaceChildren(...pools.map(pool));
  byId("partitions-card").hidden = cluster.partitions.length === 0;
  byId("partitions").tBodies[0].replaceChildren(...cluster.partitions.map(partition));
}

function sentence(cluster) {
  if (cluster.age_seconds === null) return "Waiting for the first scheduler poll.";
  if (cluster.slots) {
    const { free, total } = cluster.slots;
    return `Jobs run on this machine, up to ${total} worker processes at once; ${free} ${free === 1 ? "is" : "are"} free.`;
  }
  return `Nodes: ${states(cluster.nodes)}.`;
}

const states = (nodes) => Object.entries(nodes).map(([state, number]) => `${number} ${state}`).join(", ") || "none";

function pool({ type, free, total }) {
  const held = free === null || !total ? 0 : 1 - free / total;
  return make("div", {}, make("span", { text: type ?? "GPUs" }),
    make("span", { class: "bar", "aria-hidden": "true" }, make("span", { style: `width:${(held * 100).toFixed(1)}%` })),
    make("span", { class: "right", text: free === null ? count(total) : `${count(free)} of ${count(total)} free` }));
}

function partition(one) {
  const gpus = one.gpus.map((gpu) => `${gpu.free ?? "?"} of ${gpu.total} ${gpu.type ?? ""}`.trimEnd()).join(", ");
  const cells = [
    one.time_limit_minutes === null ? "none" : duration(one.time_limit_minutes * 60), one.max_nodes === null ? "any" : `up to ${one.max_nodes}`,
    states(one.nodes), gpus || NOTHING, one.groups === null ? "all" : one.groups.join(", "),
  ];
  return make("tr", {}, make("td", {}, make("strong", { text: one.name }), one.default ? " " : null, one.default ? make("small", { text: "default" }) : null),
    make("td", {}, make("span", { class: `chip ${one.state === "up" ? "good" : "wait"}`, text: one.state })), ...cells.map((text) => make("td", { text })));
}

function owners(jobs) {
  const found = new Map();
  for (const job of jobs) {
    if (!found.has(job.created_by)) found.set(job.created_by, { name: job.created_by, running: 0, held: 0, waiting: 0, wanted: 0 });
    const owner = found.get(job.created_by);
    const gpus = job.spec.gpus ?? 1;
    if (HOLDING.includes(job.status)) { owner.running += 1; owner.held += gpus; } else { owner.waiting += 1; owner.wanted += gpus; }
  }
  return [...found.values()].sort((a, b) => b.held - a.held || b.wanted - a.wanted || a.name.localeCompare(b.name));
}

function showOwners(found) {
  byId("idle").hidden = found.length > 0;
  byId("owners").tBodies[0].replaceChildren(...found.map((owner) => make("tr", {},
    make("td", {}, make("a", { href: `/jobs${query({ created_by: owner.name, status: "running" })}`, text: owner.name })),
    ...[owner.running, owner.held, owner.waiting, owner.wanted].map((value) => make("td", { class: "right", text: count(value) })))));
}

function showHealth(health, usage) {
  const good = health.status === "ok";
  const chip = byId("health");
  chip.className = `chip ${good ? "good" : "bad"}`;
  setText(chip, good ? "ready" : health.status);
  const bad = Object.entries(health.checks ?? {}).filter(([, state]) => state !== "ok").map(([name, state]) => `${name}: ${state}`);
  byId("checks").replaceChildren(...[...bad, ...(health.notes ?? [])].map((text) => make("li", { text })));
  setText(byId("disk"), `${size(usage.disk_bytes)} used, ${size(usage.free_bytes)} free`);
}

async function again() {
  if (document.hidden) return;
  try {
    await read();
    showLink("live");
  } catch {
    showLink("lost");
  }
}

again();
setInterval(again, PAUSE);
document.addEventListener("visibilitychange", again);
