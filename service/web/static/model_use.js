// How the model of a job is used: lines for Python and the shell, each where it applies.

import { byId, make, pageOf } from "./page.js";

// Tasks whose loop trains a model.
const TASKS = [
  "causal_lm",
  "sequence_classification",
  "text_embedding",
  "image_classification",
  "regression",
  "custom",
];

/**
 * A text as one word of a shell.
 *
 * @param {string} text
 */
const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/**
 * Whether a job has exported a model: a task whose loop trains one, at its end.
 *
 * @param {Job} job
 */
export const isExported = ({ status, spec }) =>
  status === "succeeded" && TASKS.includes(spec.task) && Boolean(spec.checkpoint?.export);

/**
 * The lines for a job's export, or for its newest checkpoint if it has ended without an export: title and code of each.
 *
 * @param {Job} job
 */
export function usesOf(job) {
  const { spec } = job;
  const exported = isExported(job);
  const classifiesTexts = spec.task === "sequence_classification";
  const saved = ["succeeded", "failed", "cancelled"].includes(job.status) && job.last_checkpoint_step !== null;
  if (!TASKS.includes(spec.task) || !spec.model || !(exported || saved)) return [];
  const generates = spec.task === "causal_lm";
  const embeds = spec.task === "text_embedding";
  const uses = [{ title: "Python", code: pythonCode(job.id, generates || classifiesTexts || embeds, exported) }];
  if (embeds) uses[0].code += '\nvectors = model.encode(["…", "…"])  # products are cosine similarities';
  if (embeds && exported) uses.push(sentenceTransformers(job.id));
  if (generates)
    uses.push({
      title: "Generate text",
      code: `trainyard generate ${job.id} "…"${exported ? "" : " --checkpoint latest"}`,
    });
  if (exported && generates) uses.push(...folderUses(job));
  if (pageOf("model", ""))
    uses.push({
      title: "Register",
      code: `trainyard models register NAME ${job.id} --alias prod${exported ? "" : " --checkpoint latest"}`,
    });
  return uses;
}

/**
 * @param {string} id
 * @param {boolean} readsText
 * @param {boolean} exported
 */
const pythonCode = (id, readsText, exported) => `import trainyard

model, ${readsText ? "tokenizer" : "transform"} = trainyard.load("${id}"${exported ? "" : ', checkpoint="latest"'})`;

/** @param {string} id */
const sentenceTransformers = (id) => ({
  title: "sentence-transformers",
  code: `# trainyard download ${id} --to ./export
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("./export")
vectors = model.encode(["…", "…"])`,
});

/**
 * The lines for the downloaded export of a language model.
 *
 * @param {Job} job
 */
function folderUses({ id, name, spec }) {
  const download = `trainyard download ${id} --to ./export`;
  const base = spec.model.source === "hf" ? spec.model.path : null;
  if (spec.lora_rank != null && !spec.lora?.merge) {
    if (!base) return [];
    return [
      {
        title: "peft",
        code: `# ${download}
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained(${JSON.stringify(base)})
model = PeftModel.from_pretrained(base, "./export")
tokenizer = AutoTokenizer.from_pretrained("./export")`,
      },
      {
        title: "vLLM",
        code: `${download}\nvllm serve ${word(base)} --enable-lora --max-lora-rank ${spec.lora_rank} --lora-modules ${word(`${name}=./export`)}`,
      },
    ];
  }
  if (spec.trainable) return [];
  const whole = {
    title: "transformers",
    code: `# ${download}
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("./export")
tokenizer = AutoTokenizer.from_pretrained("./export")`,
  };
  return base ? [whole, { title: "vLLM", code: `${download}\nvllm serve ./export` }] : [whole];
}

/**
 * Show the lines with buttons that copy them. An update must not end a selection of text.
 *
 * @param {Job} job
 */
export function showUses(job) {
  byId("export").hidden = !isExported(job);
  const uses = usesOf(job);
  byId("use-model").hidden = uses.length === 0;
  const shown = JSON.stringify(uses);
  if (byId("uses").dataset.shown === shown) return;
  byId("uses").dataset.shown = shown;
  byId("uses").replaceChildren(
    ...uses.map(({ title, code }, index) =>
      make(
        "div",
        {},
        make("h3", { text: title }),
        make(
          "div",
          { class: "copyable" },
          make("button", {
            type: "button",
            class: "copy quiet",
            "data-copy": `use-${index}`,
            title: `Copy the lines for ${title}`,
            "aria-label": `Copy the lines for ${title}`,
            text: "Copy",
          }),
          make("pre", { id: `use-${index}`, tabindex: "0", text: code }),
        ),
      ),
    ),
  );
}
