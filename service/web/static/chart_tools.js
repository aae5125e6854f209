// The tools above the charts of a page: axis, scales, smoothing, search, and charts of several metrics.

import { closeMenu } from "./menus.js";
import { byId, make, openDialog } from "./page.js";

const LABELS = {
  step: "step",
  epoch: "epoch",
  tokens: "tokens",
  relative: "relative time",
  time: "time",
  seconds: "training time",
};

/**
 * Connect the tools with a view: `change` gets its changed values, `axes` returns the axes that the page has now.
 *
 * @param {ChartsView} view
 * @param {ChangeCharts} change
 * @param {() => Axis[]} axes
 * @returns {() => void} shows these axes, and which one the view has.
 */
export function connectChartTools(view, change, axes) {
  const [axis, smooth] = [byId("axis", HTMLSelectElement), byId("smooth", HTMLInputElement)];
  const search = byId("chart-search", HTMLInputElement);
  const showAxes = () => {
    const names = [...new Set([...axes(), view.axis])];
    if (String(names) !== String(Array.from(axis.options, (option) => option.value)))
      axis.replaceChildren(...names.map((one) => make("option", { value: one, text: LABELS[one] })));
    axis.value = view.axis;
  };
  showAxes();
  axis.addEventListener("focus", showAxes);
  axis.addEventListener("change", () => change({ axis: /** @type {Axis} */ (axis.value) }));
  connectToggle("log-scale", view.log, (log) => change({ log }));
  connectToggle("log-x", view.logX, (logX) => change({ logX }));
  connectToggle("clip", view.clip, (clip) => change({ clip }));
  smooth.value = String(view.weight);
  smooth.addEventListener("input", () => change({ weight: Number(smooth.value) }));
  search.value = view.search;
  search.addEventListener("input", () => change({ search: search.value }));
  byId("reset-zoom").addEventListener("click", () => change({ range: null }));
  return showAxes;
}

/**
 * @param {string} id
 * @param {boolean} checked
 * @param {(checked: boolean) => void} change
 */
function connectToggle(id, checked, change) {
  const box = byId(id, HTMLInputElement);
  box.checked = checked;
  box.addEventListener("change", () => change(box.checked));
}

/**
 * Connect the button and the dialog that combine metrics in one chart; `keys` returns the metrics of the page.
 *
 * @param {ChartsView} view
 * @param {ChangeCharts} change
 * @param {() => string[]} keys
 */
export function connectCombination(view, change, keys) {
  const [button, list] = [byId("combine"), byId("combination-list")];
  const [dialog, search] = [byId("combination", HTMLDialogElement), byId("combination-search", HTMLInputElement)];
  search.addEventListener("input", () => {
    const part = search.value.trim().toLowerCase();
    for (const label of list.querySelectorAll("label")) label.hidden = !label.textContent.toLowerCase().includes(part);
  });
  button.addEventListener("click", async () => {
    closeMenu(byId("chart-options", HTMLDetailsElement)); // Escape is for the dialog
    search.value = "";
    list.replaceChildren(
      ...keys().map((key) => make("label", {}, make("input", { type: "checkbox", value: key }), key)),
    );
    if ((await openDialog(dialog)) !== "yes") return;
    const chosen = Array.from(list.querySelectorAll("input:checked"), (input) => input.value);
    if (chosen.length) change({ combined: [...view.combined, chosen] });
  });
}
