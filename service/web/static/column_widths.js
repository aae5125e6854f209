// The widths of the columns of the table of jobs, and the places of those that are pinned.

import { byId, make } from "./page.js";
import { hasDefaultColumns } from "./table_view.js";

const SELECT = 38; // pixels of the column of checkboxes
const BESIDE = "(min-width: 1101px)"; // in narrower windows charts are below the table

const pinned = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, pinned];

/** @type {[Column[], TableView] | null} */
let shown = null; // the columns and the view that were shown last

/**
 * Show columns with the widths of the view; those that are pinned stay in place when the table is scrolled. Beside charts, columns
 * that the reader has not chosen are hidden if they do not fit, the values of metrics last.
 *
 * @param {Column[]} columns
 * @param {TableView} view
 */
export function showWidths(columns, view) {
  if (!shown) new ResizeObserver(() => shown && showWidths(...shown)).observe(byId("table-frame"));
  shown = [columns, view];
  const widthOf = (/** @type {Column} */ { name, width }) => view.widths[name] ?? width;
  const hidden = hasDefaultColumns(view) ? unfitting(columns, widthOf, roomBesideCharts()) : new Set();
  const fitting = columns.filter((column) => !hidden.has(column));
  let left = SELECT;
  const hiddenCells = [...hidden].map((column) => `#jobs tr:not(.spacer) > :nth-child(${columns.indexOf(column) + 2})`);
  const rules = hiddenCells.length ? [`@media ${BESIDE} { ${hiddenCells.join(", ")} { display: none; } }`] : [];
  byId("columns-widths").replaceChildren(
    newCol(SELECT),
    ...fitting.map((column) => newCol(column.name === "name" && !view.widths.name ? null : widthOf(column))),
  );
  const fixed = columns.filter(({ name }) => view.fixed.includes(name));
  fixed.forEach((column, i) => {
    const cells = `:nth-child(${columns.indexOf(column) + 2})`;
    rules.push(`@media (min-width: 721px) { #jobs tr:not(.spacer) > ${cells} { position: sticky; left: ${left}px; z-index: 1; }
    #jobs thead th${cells} { z-index: 3; } ${i === fixed.length - 1 ? `#jobs tr:not(.spacer) > ${cells} { box-shadow: 1px 0 0 var(--line); }` : ""} }`);
    left += widthOf(column);
  });
  byId("jobs").style.minWidth = `${SELECT + fitting.reduce((sum, column) => sum + widthOf(column), 0)}px`;
  pinned.replaceSync(rules.join("\n"));
}

/**
 * The columns that do not fit: the first two are always shown, then those of values, then the others in their order.
 *
 * @param {Column[]} columns
 * @param {(column: Column) => number} widthOf
 * @param {number} room
 */
function unfitting(columns, widthOf, room) {
  let left = room - SELECT;
  const [first, others] = [columns.slice(0, 2), columns.slice(2)];
  const byUse = [...first, ...others.filter(({ isValue }) => isValue), ...others.filter(({ isValue }) => !isValue)];
  const from = byUse.findIndex((column, n) => (left -= widthOf(column)) < 0 && n > 1);
  return new Set(from < 0 ? [] : byUse.slice(from));
}

function roomBesideCharts() {
  const isBeside = byId("workspace").classList.contains("with-charts") && matchMedia(BESIDE).matches;
  return (isBeside && byId("table-frame").clientWidth) || Infinity;
}

/**
 * A column with a width, or without one: then it has all the room that is left.
 *
 * @param {number | null} width
 */
const newCol = (width) => make("col", width === null ? {} : { style: `width: ${width}px` });
