// Texts that the job's model generated at its evaluations: files of its artifacts, one for each step.

import { call, callAll } from "./api.js";
import { count } from "./format.js";
import { byId, make, toastError } from "./page.js";

const FILE = /^samples\/step-(\d{10,16})\.json$/g;
const MAX_BYTES = 2 ** 20; // as in trainyard/contract/wire/samples.py; the folder is the user's, and may hold anything

/** The samples of a job; the section is hidden until there are some. */
export class JobSamples {
  /** @param {string} jobId */
  constructor(jobId) {
    this.root = `/v1/jobs/${jobId}/artifacts`;
    /** @type {Map<number, string>} */
    this.paths = new Map(); // by step
    this.follows = true;
    /** @type {number | null} */
    this.shown = null;
    const select = byId("samples-step", HTMLSelectElement);
    select.addEventListener("change", () => {
      this.follows = select.selectedIndex === 0;
      this.show(Number(select.value)).catch(toastError);
    });
  }

  /** Read which steps have samples, and show those of the last one unless another is chosen. */
  async load() {
    const artifacts = await callAll(this.root);
    const small = artifacts.filter(({ size_bytes: size }) => size <= MAX_BYTES);
    const found = small.flatMap(({ path }) => [...path.matchAll(FILE)]);
    this.paths = new Map(found.map(([path, step]) => [Number(step), path]));
    const steps = [...this.paths.keys()].sort((one, other) => other - one);
    byId("samples").hidden = !steps.length;
    if (!steps.length) return;
    const chosen = this.follows || this.shown === null || !this.paths.has(this.shown) ? steps[0] : this.shown;
    byId("samples-step").replaceChildren(
      ...steps.map((step) => make("option", { value: step, text: count(step), selected: step === chosen })),
    );
    await this.show(chosen);
  }

  /** @param {number} step */
  async show(step) {
    this.shown = step;
    const record = await call(`${this.root}/${this.paths.get(step)}`);
    if (this.shown !== step) return; // another one was chosen meanwhile
    const samples = Array.isArray(record?.samples) ? record.samples : [];
    byId("samples-list").replaceChildren(...samples.map(sampleItem));
  }
}

/** @param {any} sample */
function sampleItem(sample) {
  const text = make(
    "pre",
    { tabindex: 0 },
    make("span", { class: "prompt", text: String(sample?.prompt ?? "") }),
    String(sample?.text ?? ""),
  );
  const cut = sample?.ended === false ? make("small", { text: "cut after the last token that was requested" }) : null;
  return make("li", {}, text, cut);
}
