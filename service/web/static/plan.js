// A plan as the API tells it, drawn: memory by strategy and part, what fits, what would help, and the batch script.

import { count, number, size } from "./format.js";
import { byId, make, setText } from "./page.js";

const PARTS = {
  parameters: "parameters", gradients: "gradients", optimizer: "optimizer", buckets: "DDP’s buckets", gathered: "gathered parameters",
  activations: "activations", logits: "logits", transient: "temporary buffers",
};

/** Draw a plan. `use(fields)` changes fields of the spec, given by path. */
export function showPlan(plan, use) {
  const verdict = byId("verdict");
  setText(verdict, sentence(plan.summary));
  verdict.className = `verdict ${plan.fits === true ? "good" : plan.fits === false ? "bad" : ""}`;
  showChanges(plan, use);
  showBars(plan, use);
  byId("warnings").replaceChildren(...plan.warnings.map((words) => make("li", { text: sentence(words) })));
  byId("sizes").replaceChildren(...facts(plan).map(([word, value]) => make("div", {}, make("dt", { text: word }), make("dd", { text: value }))));
  setText(byId("resolved").querySelector("pre"), written(plan.spec));
  setText(byId("script").querySelector("pre"), plan.script ?? "No batch script available.");
}

/** With a capital, unless it begins with the name of a field. */
const sentence = (words) => `${/^[a-z]+[ :,]/.test(words) ? words[0].toUpperCase() : words[0]}${words.slice(1)}${/[.)]$/.test(words) ? "" : "."}`;

/** Memory in powers of 1024, as the plan's own sentences have it. */
function memory(bytes) {
  const [unit, length] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, one]) => bytes >= one) ?? ["B", 1];
  return `${number(bytes / length, 3)} ${unit}`;
}

function showChanges(plan, use) {
  byId("changes").replaceChildren(...plan.changes.map((change) => make("div", {},
    make("span", { text: `${sentence(change.message)} Then ${memory(change.peak_bytes)} on each.` }),
    make("button", { type: "button", text: "Apply", onclick: () => use(change.set) }))));
}

function showBars(plan, use) {
  const limit = smallest(plan.gpus);
  const largest = Math.max(1, ...plan.strategies.map(taken));
  const near = limit !== null && limit < 4 * largest; // farther away, the bars would be too short to be read
  const most = near ? Math.max(limit, largest) : largest;
  const parts = Object.keys(PARTS).filter((part) => plan.strategies.some((one) => one.parts?.[part]));
  byId("bars").replaceChildren(...plan.strategies.map((one) => bar(one, { most, limit: near ? limit : null, use })));
  byId("parts").replaceChildren(...parts.map((part) => make("li", {}, make("i", { class: `part ${part}` }), PARTS[part])),
    ...(limit && plan.strategies.length ? [make("li", {}, near ? make("i", { class: "limit" }) : null, near ? `Available: ${memory(limit)}` : `Available: ${memory(limit)} (off scale)`)] : []));
}

const taken = (one) => one.peak_bytes ?? one.state_bytes;

/** The least memory of a GPU that it could get; null where any is unknown. */
function smallest(gpus) {
  const known = gpus.map((gpu) => gpu.min_bytes);
  return known.length && known.every(Boolean) ? Math.min(...known) : null;
}

function bar(one, { most, limit, use }) {
  const told = Object.entries(one.parts ?? { parameters: one.state_bytes }).filter(([, bytes]) => bytes > 0);
  const width = (bytes) => `width:${((100 * bytes) / most).toFixed(2)}%`;
  const fits = one.fits === true ? "fits" : one.fits === false ? "too large" : "";
  const words = told.map(([part, bytes]) => `${PARTS[part]} ${memory(bytes)}`).join(", ");
  const micro = one.micro_size ? `micro-batch ${count(one.micro_size)}` : "";
  return make("div", { class: `strategy ${one.chosen ? "chosen" : ""}` },
    one.chosen ? make("strong", { text: one.strategy }) : make("button", { type: "button", class: "quiet", text: one.strategy, title: `Use ${one.strategy}`, onclick: () => use({ strategy: one.strategy }) }),
    make("span", { class: "stack", role: "img", "aria-label": words, title: words },
      ...told.map(([part, bytes]) => make("span", { class: `part ${part}`, style: width(bytes) })),
      limit ? make("i", { class: "limit", style: `left:${((100 * limit) / most).toFixed(2)}%` }) : null),
    make("span", { class: "much", text: one.peak_bytes === null ? `${memory(one.state_bytes)} or more` : memory(one.peak_bytes) }),
    make("span", { class: `fits ${one.fits === true ? "good" : one.fits === false ? "bad" : ""}`, text: fits }),
    make("small", { text: [micro, one.peak_phase ? `peak: ${one.peak_phase}` : ""].filter(Boolean).join(", ") }));
}

function facts(plan) {
  const found = [["Strategy", `${plan.strategy}: ${plan.strategy_reason}`]];
  if (plan.model) found.push(["Parameters", plan.model.trained === plan.model.parameters ? short(plan.model.parameters) : `${short(plan.model.parameters)}, of which ${short(plan.model.trained)} are trained`]);
  if (plan.disk) found.push(["On disk", `${size(plan.disk.total_bytes)}: ${count(plan.disk.checkpoints)} checkpoints of ${size(plan.disk.checkpoint_bytes)}${plan.disk.export_bytes ? `, export ${size(plan.disk.export_bytes)}` : ""}`]);
  return found;
}

function short(elements) {
  const [unit, length] = [["billion", 1e9], ["million", 1e6], ["thousand", 1e3]].find(([, one]) => elements >= one) ?? ["", 1];
  return `${number(elements / length, 3)} ${unit}`.trim();
}

/** A spec's fields, a line each: `optimizer: {"lr": 0.001}` is YAML, too. */
const written = (spec) => Object.entries(spec).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join("\n");

/** Whether there is room for it now, by what the scheduler said last; empty where that is not known. */
export function room(cluster, spec) {
  const wanted = spec.gpus ?? 1;
  if (cluster.slots) {
    const { free, total } = cluster.slots;
    if (wanted > total) return `Requests ${wanted} worker processes; this machine has ${total}.`;
    return free >= wanted ? `${free} of ${total} worker processes are free: starts at once.` : `${free} of ${total} worker processes are free: waits for other jobs.`;
  }
  const name = spec.resources?.partition;
  const partition = cluster.partitions.find((one) => (name ? one.name === name : one.default));
  const types = partition?.gpus.filter((one) => !spec.resources?.gpu_type || one.type === spec.resources.gpu_type) ?? [];
  if (!types.length || types.some((one) => one.free === null)) return "";
  const free = types.reduce((sum, one) => sum + one.free, 0);
  return `${free} of ${types.reduce((sum, one) => sum + one.total, 0)} GPUs of partition ${partition.name} are free${free >= wanted ? "." : ": waits for other jobs."}`;
}
