// What the versions of a registered model show, as `trainyard models show` does. Pure functions.

const SHOWN_METRICS = 3;

/**
 * The metrics that are shown, the same for all versions: the losses, then others of evaluations, then of the training.
 *
 * @param {{ metrics: Record<string, MetricValue> }[]} versions
 */
export function shownMetrics(versions) {
  const names = [...new Set(versions.flatMap((version) => Object.keys(version.metrics)))];
  const group = (/** @type {string} */ name) =>
    ["eval/loss", "train/loss"].includes(name) ? 0 : name.startsWith("eval/") ? 1 : name.startsWith("train/") ? 2 : 3;
  return names.sort((a, b) => group(a) - group(b) || a.localeCompare(b)).slice(0, SHOWN_METRICS);
}

/**
 * What the `data` of a spec names: paths, ids of uploaded files, or the name of a builtin data set.
 *
 * @param {any} data
 * @returns {string}
 */
export function dataText(data) {
  if (Array.isArray(data?.sources)) return data.sources.map(dataText).filter(Boolean).join(", ");
  return [data?.path ?? data?.id ?? data?.name ?? []].flat().join(", ");
}
