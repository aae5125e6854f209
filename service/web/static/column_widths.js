// The widths of the columns of the table of jobs, and the places of those that are pinned.

import { byId, make } from "./page.js";

const SELECT = 38; // pixels of the column of checkboxes

const pinned = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, pinned];

/** Show columns with the widths of the view; those that are pinned stay in place when the table is scrolled. */
export function showWidths(columns, { widths, fixed }) {
  const widthOf = ({ name, width }) => widths[name] ?? width;
  let left = SELECT;
  const rules = [];
  byId("columns-widths").replaceChildren(newCol(SELECT), ...columns.map((column) => newCol(widthOf(column))));
  columns.forEach((column, n) => {
    if (!fixed.includes(column.name)) return;
    rules.push([n + 2, left]);
    left += widthOf(column);
  });
  byId("jobs").style.minWidth = `${SELECT + columns.reduce((sum, column) => sum + widthOf(column), 0)}px`;
  pinned.replaceSync(rules.map(([n, x], i) => `@media (min-width: 721px) { #jobs tr:not(.spacer) > :nth-child(${n}) { position: sticky; left: ${x}px; z-index: 1; }
    #jobs thead th:nth-child(${n}) { z-index: 3; } ${i === rules.length - 1 ? `#jobs tr:not(.spacer) > :nth-child(${n}) { box-shadow: 1px 0 0 var(--line); }` : ""} }`).join("\n"));
}

const newCol = (width) => make("col", { style: `width: ${width}px` });
