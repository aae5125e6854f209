// The tools above the charts of a page: axis, scales, smoothing, search, and charts of several metrics.

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
 * @returns {() => void} shows these axes, and which one the view has.
 */
export function connectChartTools(view, change, axes) {
  const axis = byId("axis");
  const showAxes = () => {
    const names = [...new Set([...axes(), view.axis])];
    if (String(names) !== String(Array.from(axis.options, (option) => option.value)))
      axis.replaceChildren(...names.map((one) => make("option", { value: one, text: LABELS[one] })));
    axis.value = view.axis;
  };
  showAxes();
  axis.addEventListener("focus", showAxes);
  axis.addEventListener("change", () => change({ axis: axis.value }));
  connectToggle("log-scale", view.log, (log) => change({ log }));
  connectToggle("log-x", view.logX, (logX) => change({ logX }));
  connectToggle("clip", view.clip, (clip) => change({ clip }));
  byId("smooth").value = String(view.weight);
  byId("smooth").addEventListener("input", () => change({ weight: Number(byId("smooth").value) }));
  byId("chart-search").value = view.search;
  byId("chart-search").addEventListener("input", () => change({ search: byId("chart-search").value }));
  byId("reset-zoom").addEventListener("click", () => change({ range: null }));
  return showAxes;
}

function connectToggle(id, checked, change) {
  byId(id).checked = checked;
  byId(id).addEventListener("change", (event) => change(event.target.checked));
}

/** Connect the button and the dialog that combine metrics in one chart; `keys` returns the metrics of the page. */
export function connectCombination(view, change, keys) {
  const [button, dialog, list, search] = [
    byId("combine"),
    byId("combination"),
    byId("combination-list"),
    byId("combination-search"),
  ];
  search.addEventListener("input", () => {
    const part = search.value.trim().toLowerCase();
    for (const label of list.children) label.hidden = !label.textContent.toLowerCase().includes(part);
  });
  button.addEventListener("click", async () => {
    search.value = "";
    list.replaceChildren(
      ...keys().map((key) => make("label", {}, make("input", { type: "checkbox", value: key }), key)),
    );
    if ((await openDialog(dialog)) !== "yes") return;
    const chosen = Array.from(list.querySelectorAll(":checked"), (input) => input.value);
    if (chosen.length) change({ combined: [...view.combined, chosen] });
  });
}
