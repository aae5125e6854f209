// The pages of registered models: the table of all, and the versions of one.

import "./copy_buttons.js";
import { count, NOTHING, number } from "./format.js";
import { byId, data, formatTimes, make } from "./page.js";

const SHOWN_METRICS = 3;

const cell = (text) => make("td", { text: text || NOTHING });
const time = (iso) => make("td", {}, make("time", { datetime: iso, "data-format": "short" }));

function modelRow(model) {
  const aliases = Object.entries(model.aliases).map(([alias, version]) => `${alias} ${version}`).join(", ");
  return make("tr", {},
    make("td", {}, make("a", { href: `/models/${encodeURIComponent(model.name)}`, text: model.name })),
    cell(model.latest_version === null ? "" : String(model.latest_version)), cell(aliases), cell(model.description), cell(model.created_by),
    time(model.updated_at));
}

/** The metrics of a version, those of evaluations first. */
export function metricsText(metrics) {
  const keys = Object.keys(metrics).sort((a, b) => b.startsWith("eval/") - a.startsWith("eval/") || a.localeCompare(b));
  return keys.slice(0, SHOWN_METRICS).map((key) => `${key} ${number(metrics[key])}`).join(", ");
}

/** What the data of a spec names: paths, uploaded files or a builtin data set, of all sources of a mixture. */
export const dataNames = (data) =>
  data?.sources?.length ? data.sources.map(dataNames).join(", ") : [data?.path ?? data?.id ?? data?.name ?? ""].flat().join(", ");

function versionRow(version) {
  const { parent } = version;
  return make("tr", {},
    cell(String(version.version)), cell(version.aliases.join(", ")),
    make("td", {}, make("a", { href: `/jobs/${version.job_id}`, text: version.job_name })),
    cell(version.checkpoint_id === null ? (version.is_adapter ? "adapters" : "export") : `checkpoint of step ${count(version.step)}`),
    cell(metricsText(version.metrics)), cell(dataNames(version.data)), cell(version.base),
    parent ? make("td", {}, make("a", { href: `/jobs/${parent.job_id}`, text: `step ${count(parent.step)} of a job` })) : cell(""),
    time(version.created_at));
}

if (data.model) {
  byId("empty").hidden = data.model.versions.length > 0;
  byId("versions").tBodies[0].replaceChildren(...data.model.versions.map(versionRow));
} else {
  byId("empty").hidden = data.models.length > 0;
  byId("models-card").hidden = data.models.length === 0;
  byId("models").tBodies[0].replaceChildren(...data.models.map(modelRow));
}
formatTimes();
