// A plan of the API: memory by strategy and part, whether it fits, suggested changes, and the batch script.

import { bytes, count, number } from "./format.js";
import { byId, make, parts, setMessage, setText } from "./page.js";
import { changeList, differencesOf } from "./spec_changes.js";

/** @type {Record<string, string>} */
const PARTS = {
  parameters: "parameters",
  gradients: "gradients",
  optimizer: "optimizer",
  buckets: "DDP’s buckets",
  gathered: "gathered parameters",
  activations: "activations",
  logits: "logits",
  transient: "temporary buffers",
};

/**
 * Show a plan. `setFields(fields)` changes fields of the spec, given by path.
 *
 * @param {Api.PlanResource} plan
 * @param {SetFields} setFields
 */
export function showPlan(plan, setFields) {
  const verdict = byId("verdict");
  setMessage(verdict, sentence(plan.summary));
  verdict.className = `verdict ${fitTone(plan.fits)}`;
  showChanges(plan, setFields);
  showBars(plan, setFields);
  byId("warnings").replaceChildren(...plan.warnings.map((text) => make("li", {}, ...parts(sentence(text)))));
  byId("sizes").replaceChildren(
    ...facts(plan).map(([label, value]) =>
      make("div", {}, make("dt", { text: label }), make("dd", {}, ...parts(value))),
    ),
  );
  for (const part of document.querySelectorAll("[data-of-plan]")) part.removeAttribute("hidden");
  setText(byId("resolved-text"), asYaml(plan.spec));
  setText(byId("script-text"), plan.script ?? "No batch script available.");
}

/** @param {boolean | null} fits */
const fitTone = (fits) => (fits === true ? "good" : fits === false ? "bad" : "");

/**
 * A message as a sentence: with a capital letter, unless it starts with the name of a field.
 *
 * @param {string} text
 */
const sentence = (text) =>
  `${/^[a-z]+[ :,]/.test(text) ? text[0].toUpperCase() : text[0]}${text.slice(1)}${/[.)]$/.test(text) ? "" : "."}`;

/**
 * @param {Api.PlanResource} plan
 * @param {SetFields} setFields
 */
function showChanges(plan, setFields) {
  byId("changes").replaceChildren(
    ...plan.changes.map((change) =>
      make(
        "div",
        {},
        make("span", {}, ...parts(`${sentence(change.message)} Then ${bytes(change.peak_bytes)} on each.`)),
        changeList(differencesOf(plan.spec, change.set)),
        make("button", { type: "button", text: "Apply", onclick: () => setFields(change.set) }),
      ),
    ),
  );
}

/**
 * @param {Api.PlanResource} plan
 * @param {SetFields} setFields
 */
function showBars(plan, setFields) {
  const limit = smallestGpu(plan.gpus);
  const largest = Math.max(1, ...plan.strategies.map(peakBytes));
  const inScale = limit !== null && limit < 4 * largest; // a farther limit would make the bars too short to read
  const maximum = inScale ? Math.max(limit, largest) : largest;
  const partsOf = (/** @type {Api.StrategyPlan} */ one) => /** @type {Record<string, number>} */ (one.parts ?? {});
  const names = Object.keys(PARTS).filter((part) => plan.strategies.some((one) => partsOf(one)[part]));
  byId("bars").replaceChildren(
    ...plan.strategies.map((one) => bar(one, { maximum, limit: inScale ? limit : null, setFields })),
  );
  byId("parts").replaceChildren(
    ...names.map((part) => make("li", {}, make("i", { class: `part ${part}` }), PARTS[part])),
    ...(limit && plan.strategies.length
      ? [
          make(
            "li",
            {},
            inScale ? make("i", { class: "limit" }) : null,
            inScale ? `Available: ${bytes(limit)}` : `Available: ${bytes(limit)} (off scale)`,
          ),
        ]
      : []),
  );
}

/** @param {Api.StrategyPlan} one */
const peakBytes = (one) => one.peak_bytes ?? one.state_bytes;

/**
 * The smallest memory of the possible GPUs; null if any is unknown.
 *
 * @param {Api.GpuMemory[]} gpus
 */
function smallestGpu(gpus) {
  const known = gpus.flatMap((gpu) => gpu.min_bytes || []);
  return known.length && known.length === gpus.length ? Math.min(...known) : null;
}

/**
 * @param {Api.StrategyPlan} one
 * @param {{ maximum: number, limit: number | null, setFields: SetFields }} options
 */
function bar(one, { maximum, limit, setFields }) {
  const sizes = Object.entries(one.parts ?? { parameters: one.state_bytes }).filter(([, size]) => size > 0);
  const percent = (/** @type {number} */ size) => `${((100 * size) / maximum).toFixed(2)}%`;
  const title = sizes.map(([part, size]) => `${PARTS[part]} ${bytes(size)}`).join(", ");
  const microBatch = one.micro_size ? `micro-batch ${count(one.micro_size)}` : "";
  return make(
    "div",
    { class: `strategy ${one.chosen ? "selected" : ""}` },
    one.chosen
      ? make("strong", { text: one.strategy })
      : make("button", {
          type: "button",
          class: "quiet",
          text: one.strategy,
          title: `Use ${one.strategy}`,
          onclick: () => setFields({ strategy: one.strategy }),
        }),
    make(
      "span",
      { class: "stack", role: "img", "aria-label": title, title },
      ...sizes.map(([part, size]) => make("span", { class: `part ${part}`, style: `width:${percent(size)}` })),
      limit ? make("i", { class: "limit", style: `left:${percent(limit)}` }) : null,
    ),
    make("span", {
      class: "peak",
      text: one.peak_bytes === null ? `${bytes(one.state_bytes)} or more` : bytes(one.peak_bytes),
    }),
    make("span", {
      class: `fits ${fitTone(one.fits)}`,
      text: one.fits === true ? "fits" : one.fits === false ? "too large" : "",
    }),
    make("small", { text: [microBatch, one.peak_phase ? `peak: ${one.peak_phase}` : ""].filter(Boolean).join(", ") }),
  );
}

/** @param {Api.PlanResource} plan */
function facts(plan) {
  const { model, disk } = plan;
  const rows = [
    ["Length", lengthText(plan)],
    ["Strategy", `${plan.strategy}: ${plan.strategy_reason}`],
  ];
  if (model)
    rows.push([
      "Parameters",
      model.trained === model.parameters
        ? rounded(model.parameters)
        : `${rounded(model.parameters)}, of which ${rounded(model.trained)} are trained`,
    ]);
  const host = plan.strategies.find((one) => one.chosen)?.host_bytes;
  if (host) rows.push(["Host memory", `roughly ${bytes(host)} for each rank`]);
  if (disk)
    rows.push([
      "On disk",
      `${bytes(disk.total_bytes)}: ${count(disk.checkpoints)} checkpoints of ${bytes(disk.checkpoint_bytes)}${disk.export_bytes ? `, export ${bytes(disk.export_bytes)}` : ""}`,
    ]);
  return rows;
}

/**
 * How long a run trains, and on what: `400 steps on 2 GPUs`.
 *
 * @param {Api.PlanResource} plan
 */
function lengthText({ spec: { task, steps, epochs, gpus }, accelerator }) {
  const unit = (/** @type {number} */ value, /** @type {string} */ one, /** @type {string} */ more) =>
    `${count(value)} ${value === 1 ? one : more}`;
  const length = steps
    ? unit(steps, "step", "steps")
    : epochs
      ? unit(epochs, "epoch", "epochs")
      : task === "script"
        ? "as long as the program takes"
        : "a single check";
  return `${length} on ${accelerator === "cpu" ? unit(gpus ?? 1, "CPU process", "CPU processes") : unit(gpus ?? 1, "GPU", "GPUs")}`;
}

/** @type {[string, number][]} */
const SIZES = [
  ["billion", 1e9],
  ["million", 1e6],
  ["thousand", 1e3],
];

/** @param {number} value */
function rounded(value) {
  const [unit, length] = SIZES.find(([, one]) => value >= one) ?? ["", 1];
  return `${number(value / length, 3)} ${unit}`.trim();
}

/**
 * A spec as YAML, one line for each field: `optimizer: {"lr": 0.001}`.
 *
 * @param {Record<string, any>} spec
 */
const asYaml = (spec) =>
  Object.entries(spec)
    .map(([name, value]) => `${name}: ${JSON.stringify(value)}`)
    .join("\n");

/**
 * Whether the cluster has free resources for a spec, by the last snapshot; empty if that is unknown.
 *
 * @param {Api.ClusterResource} cluster
 * @param {Record<string, any>} spec
 */
export function availability(cluster, spec) {
  const requested = spec.gpus ?? 1;
  if (cluster.slots) {
    const { free, total } = cluster.slots;
    if (requested > total) return `Requests ${requested} worker processes; this machine has ${total}.`;
    return free >= requested
      ? `${free} of ${total} worker processes are free: starts at once.`
      : `${free} of ${total} worker processes are free: waits for other jobs.`;
  }
  const name = spec.resources?.partition;
  const partition = cluster.partitions.find((one) => (name ? one.name === name : one.default));
  const types =
    partition?.gpus.filter((one) => !spec.resources?.gpu_type || one.type === spec.resources.gpu_type) ?? [];
  if (!partition || !types.length || types.some((one) => one.free === null)) return "";
  const free = types.reduce((sum, one) => sum + (one.free ?? 0), 0);
  return `${free} of ${types.reduce((sum, one) => sum + one.total, 0)} GPUs of partition ${partition.name} are free${free >= requested ? "." : ": waits for other jobs."}`;
}
