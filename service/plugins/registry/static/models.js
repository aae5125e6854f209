// The pages of registered models: the table of all, and the versions of one.

import "./copy_buttons.js";
import { urlOf } from "./address.js";
import { count, NOTHING, number } from "./format.js";
import { dataText, shownMetrics } from "./model_versions.js";
import { byId, data, formatTimes, make } from "./page.js";

/** @param {string | null} text */
const cell = (text) => make("td", { text: text || NOTHING });
/** @param {string} iso */
const time = (iso) => make("td", {}, make("time", { datetime: iso, "data-format": "short" }));

/** @param {Api.ModelResource} model */
function modelRow(model) {
  const aliases = Object.entries(model.aliases)
    .map(([alias, version]) => `${alias} ${version}`)
    .join(", ");
  return make(
    "tr",
    {},
    make("td", {}, make("a", { href: urlOf(`/models/${encodeURIComponent(model.name)}`), text: model.name })),
    cell(model.latest_version === null ? "" : String(model.latest_version)),
    cell(aliases),
    cell(model.description),
    cell(model.created_by),
    time(model.updated_at),
  );
}

/**
 * @param {Record<string, MetricValue>} metrics
 * @param {string[]} names
 */
const metricsText = (metrics, names) =>
  names
    .filter((name) => metrics[name] !== undefined)
    .map((name) => `${name} ${number(metrics[name])}`)
    .join(", ");

/**
 * @param {Api.ModelVersionResource} version
 * @param {string[]} metrics
 */
function versionRow(version, metrics) {
  const { parent } = version;
  return make(
    "tr",
    {},
    cell(String(version.version)),
    cell(version.aliases.join(", ")),
    make("td", {}, make("a", { href: urlOf(`/jobs/${version.job_id}`), text: version.job_name })),
    cell(
      version.checkpoint_id === null
        ? version.is_adapter
          ? "adapters"
          : "export"
        : `checkpoint of step ${count(version.step)}`,
    ),
    cell(metricsText(version.metrics, metrics)),
    cell(dataText(version.data)),
    cell(version.base),
    parent
      ? make(
          "td",
          {},
          make("a", { href: urlOf(`/jobs/${parent.job_id}`), text: `step ${count(parent.step)} of a job` }),
        )
      : cell(""),
    time(version.created_at),
  );
}

if (data.model) {
  const metrics = shownMetrics(data.model.versions);
  byId("empty").hidden = data.model.versions.length > 0;
  byId("versions", HTMLTableElement).tBodies[0].replaceChildren(
    ...data.model.versions.map((/** @type {Api.ModelVersionResource} */ version) => versionRow(version, metrics)),
  );
} else {
  byId("empty").hidden = data.models.length > 0;
  byId("models-card").hidden = data.models.length === 0;
  byId("models", HTMLTableElement).tBodies[0].replaceChildren(...data.models.map(modelRow));
}
formatTimes();
