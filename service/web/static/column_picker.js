// The dialog that chooses columns: built-in ones, and any key of the service; of a metric its last, smallest, largest or best value.

import { byId, make, openDialog, toastError } from "./page.js";
import { forgetKeys, jobKeys } from "./query_box.js";
import { nameInQuery } from "./query_completion.js";
import { BUILT_IN_NAMES, columnOf } from "./table_columns.js";
import { withAdded } from "./table_view.js";

const KINDS = [
  ["metric", "Metrics"],
  ["parameter", "Parameters"],
  ["spec", "Fields of the spec"],
  ["tag", "Tags"],
];
const STATISTICS = ["last", "min", "max", "best", "best_step"];
/** @type {Record<string, string>} */
const PREFIXES = { metric: "metric.", parameter: "parameter.", spec: "spec.", tag: "tags." };
const MAX_SHOWN = 150; // of each kind

/**
 * The key of a column; one that is named as a column of the table has its kind before it.
 *
 * @param {JobKey} key
 */
const columnKey = ({ kind, key }) => (BUILT_IN_NAMES.includes(key) ? `${PREFIXES[kind]}${key}` : key);

/**
 * The key of a column for a statistic of a metric.
 *
 * @param {string} metric
 * @param {string} name
 */
const statistic = (metric, name) => (name === "last" ? metric : `${name}(${nameInQuery(metric)})`);

/**
 * Let the user choose; the new names of columns in their order, and those that were added, or null if nothing was changed.
 *
 * @param {string[]} columns
 */
export async function chooseColumns(columns) {
  forgetKeys();
  const keys = await jobKeys().catch((error) => {
    toastError(error);
    return [];
  });
  const chosen = new Set(columns);
  const search = byId("columns-search", HTMLInputElement);
  const show = () => fill(keys, chosen, search.value.trim().toLowerCase());
  search.value = "";
  search.oninput = show;
  show();
  if ((await openDialog(byId("columns-dialog", HTMLDialogElement))) !== "yes") return null;
  const added = [...chosen].filter((name) => !columns.includes(name));
  return {
    columns: withAdded(
      columns.filter((name) => chosen.has(name)),
      added,
    ),
    added,
  };
}

/**
 * @param {JobKey[]} keys
 * @param {Set<string>} chosen
 * @param {string} part
 */
function fill(keys, chosen, part) {
  /** @type {ColumnBox} */
  const box = (name, label, title) =>
    make(
      "label",
      { title },
      make("input", {
        type: "checkbox",
        checked: chosen.has(name),
        onchange: (event) => {
          if (event.target.checked) chosen.add(name);
          else chosen.delete(name);
        },
      }),
      label,
    );
  const matches = (/** @type {string} */ text) => text.toLowerCase().includes(part);
  /** @type {[string, HTMLElement[]][]} */
  const sections = [
    [
      "Of the table",
      BUILT_IN_NAMES.filter((name) => matches(columnOf(name).label)).map((name) => box(name, columnOf(name).label)),
    ],
  ];
  for (const [kind, title] of KINDS) {
    const found = keys.filter((one) => one.kind === kind && matches(one.key));
    const rows = found
      .slice(0, MAX_SHOWN)
      .map(columnKey)
      .map((key) => (kind === "metric" ? metricRow(key, box) : box(key, key)));
    if (found.length > MAX_SHOWN)
      rows.push(make("p", { class: "hint", text: `${found.length - MAX_SHOWN} more; search for them` }));
    sections.push([title, rows]);
  }
  byId("columns-list").replaceChildren(
    ...sections
      .filter(([, rows]) => rows.length)
      .map(([title, rows]) => make("fieldset", {}, make("legend", { text: title }), ...rows)),
  );
}

/**
 * @param {string} key
 * @param {ColumnBox} box
 */
const metricRow = (key, box) =>
  make(
    "div",
    { class: "metric", role: "group", "aria-label": key },
    make("span", { text: key, title: key }),
    ...STATISTICS.map((name) =>
      box(statistic(key, name), name.replace("_", " "), `${name.replace("_", " ")} of ${key}`),
    ),
  );
