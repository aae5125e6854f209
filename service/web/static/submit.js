// Writing a spec: its errors at their lines and its plan as one writes, then submitting it, once.

import { ApiError, call, query } from "./api.js";
import { missing, watchCode } from "./code.js";
import "./copy.js";
import { Editor } from "./editor.js";
import { fieldsOf, lineOf, put, without } from "./fields.js";
import { count, moment } from "./format.js";
import { byId, confirmed, data, make, say, setText } from "./page.js";
import { room, showPlan } from "./plan.js";

const PAUSE = 350; // milliseconds without a key before the service is asked
const YAML = { "Content-Type": "application/yaml" };
const LOOKS = 60; // seconds that an answer of Slurm is waited for
const DRAFT = "trainyard.draft";

const editor = new Editor(byId("editor"), changed);
let plan = null;
let cluster = null;
let asking = null;
let timer;
let key = null; // of a submission that may have arrived

// -- the text --------------------------------------------------------------------------------------------------------

function changed() {
  key = null;
  setText(byId("asked"), "");
  sessionStorage.setItem(DRAFT, editor.text);
  showOrigin();
  showCode();
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE);
}

function use(fields) {
  editor.replace(Object.entries(fields).reduce((text, [path, value]) => put(text, path, value), editor.text));
}

const showCode = watchCode(() => editor.text, use);

/** Where the text is from, and where the run would begin: the text alone decides. */
function showOrigin() {
  const place = fieldsOf(editor.text).get("resume_from");
  const from = place ? editor.text.slice(place.from, place.to) : "";
  byId("preset").value = Object.entries(data.presets).find(([, text]) => text === editor.text)?.[0] ?? "";
  const source = data.source?.id === from ? `${data.source.name} from step ${count(data.source.step)}` : from;
  const words = from ? `Continues ${source}.` : data.source ? `Starts from scratch with the spec of ${data.source.name}.` : "";
  setText(byId("begun"), byId("preset").value ? "" : words);
  const other = byId("other-start");
  other.hidden = (data.source?.step ?? null) === null || Boolean(byId("preset").value);
  setText(other, from ? "Start from scratch" : "Continue from its checkpoint");
}

byId("other-start").addEventListener("click", () => {
  const begun = fieldsOf(editor.text).has("resume_from");
  editor.replace(begun ? without(editor.text, "resume_from") : put(editor.text, "resume_from", data.source.id));
});

byId("preset").addEventListener("change", (event) => {
  const text = data.presets[event.target.value];
  if (text !== undefined) editor.replace(text);
});

const draft = sessionStorage.getItem(DRAFT);
if (draft !== null && !data.given && draft !== editor.text) {
  editor.area.value = draft;
  editor.number();
  showOrigin();
  if (!byId("preset").value && !byId("begun").textContent) setText(byId("begun"), "Your draft.");
}

// -- its plan --------------------------------------------------------------------------------------------------------

async function ask() {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  setText(byId("busy"), "planning …");
  try {
    plan = await call("/v1/plans", { method: "POST", body: editor.text, headers: YAML, signal });
    complain([]);
    showPlan(plan, use);
    setText(byId("room"), cluster ? room(cluster, plan.spec) : "");
    show({ stale: false });
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 429) { timer = setTimeout(ask, 2000); return; }
    told(error);
    show({ stale: true });
  }
}

function show({ stale }) {
  byId("plan").classList.toggle("stale", stale);
  setText(byId("busy"), stale && plan ? "last valid plan" : "");
  const forcing = byId("forcing");
  if (!forcing) return;
  forcing.hidden = stale || plan.fits !== false;
  if (forcing.hidden) byId("force").checked = false;
}

function told(error) {
  if (![400, 422].includes(error.status)) { say(error.message, { bad: true }); return; }
  complain(error.problems.length ? error.problems : [{ param: error.param ?? "", message: error.message }]);
}

/** Problems at the lines of their fields, and below the text as a list. */
function complain(problems) {
  const fields = fieldsOf(editor.text);
  const placed = problems.map(({ param, message }) => {
    const named = /^not valid YAML: line (\d+)/.exec(message);
    return { param, message, line: named ? Number(named[1]) - 1 : lineOf(fields, param) };
  });
  placed.sort((one, other) => (one.line ?? -1) - (other.line ?? -1));
  const short = ({ param, message, line }) => (line !== null && param && !fields.has(param) ? `${param} ${message}` : message);
  editor.mark(placed.map((one) => [one.line ?? 0, short(one)]));
  byId("problems").replaceChildren(...placed.map(({ param, message, line }) => make("li", {},
    make("button", { type: "button", class: "quiet", text: line === null ? "Spec" : `Line ${line + 1}`, onclick: () => editor.goTo(line ?? 0) }),
    make("span", {}, param ? make("code", { text: param }) : null, ` ${message}`))));
}

// -- submitting ------------------------------------------------------------------------------------------------------

byId("submit")?.addEventListener("click", async () => {
  const button = byId("submit");
  const file = missing(editor.text);
  if (file && !(await confirmed(byId("sure"), `Submit without ${file}?`, "The code is not uploaded. The job fails unless it is installed on the workers."))) return;
  key ??= Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  button.disabled = true;
  const forced = byId("force").checked ? "true" : undefined;
  try {
    const job = await call(`/v1/jobs${query({ force: forced })}`, { method: "POST", body: editor.text, headers: { ...YAML, "Idempotency-Key": key } });
    sessionStorage.removeItem(DRAFT);
    location.assign(`/jobs/${encodeURIComponent(job.id)}`);
  } catch (error) {
    if (error instanceof ApiError && error.status < 500) key = null; // it was not accepted: the next one is another
    told(error);
    button.disabled = false;
  }
});

byId("force")?.addEventListener("change", () => { key = null; });

// -- when it would start ---------------------------------------------------------------------------------------------

byId("ask")?.addEventListener("click", async (event) => {
  const text = editor.text;
  event.target.disabled = true;
  setText(byId("asked"), "asking …");
  try {
    const told = await call(`/v1/plans${query({ estimate_start: "true", wait_seconds: 5 })}`, { method: "POST", body: text, headers: YAML });
    const words = await answer(told.start_estimate);
    if (text === editor.text) setText(byId("asked"), words);
  } catch (error) {
    setText(byId("asked"), "");
    told(error);
  }
  event.target.disabled = false;
});

/** What Slurm says, asked for again until it has been put to it. */
async function answer(asked) {
  for (let look = 0; asked.state === "waiting" && look < LOOKS; look += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    asked = await call(`/v1/start-estimates/${encodeURIComponent(asked.id)}`);
  }
  return asked.estimated_start ? `Estimated start if submitted now: ${moment(asked.estimated_start)}.` : asked.message;
}

async function look() {
  cluster = await call("/v1/cluster").catch(() => cluster);
  if (byId("ask")) byId("ask").hidden = cluster?.backend !== "slurm";
  if (plan && cluster) setText(byId("room"), room(cluster, plan.spec));
}

if (data.source) showOrigin();
showCode();
ask();
look();
setInterval(look, 15_000);
