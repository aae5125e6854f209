// The form for a search on the page of a spec: ranges of the spec's fields, and one submission.

import { urlOf } from "./address.js";
import { call } from "./api.js";
import { byId, make, maybeById, onOpen, setMessage, setText } from "./page.js";
import { resolvedSpec, specText } from "./submit.js";
import { fieldsOf } from "./yaml_fields.js";

const form = maybeById("sweep", HTMLDetailsElement);
if (form) connect(form);

/** @param {HTMLDetailsElement} section */
function connect(section) {
  const button = byId("sweep-start", HTMLButtonElement);
  const ranges = byId("sweep-ranges");

  function add(field = "", range = "") {
    const path = make("input", {
      type: "text",
      value: field,
      list: "sweep-fields",
      placeholder: "optimizer.lr",
      "aria-label": "Field",
      class: "mono",
      maxlength: 200,
    });
    const text_ = make("input", {
      type: "text",
      value: range,
      placeholder: "log:1e-5:1e-1",
      "aria-label": "Range",
      class: "mono",
      maxlength: 4096,
      onfocus: () => text_.select(),
    });
    path.addEventListener("change", () => {
      if (!text_.value) text_.value = suggestion(path.value);
    });
    const row = make(
      "li",
      {},
      path,
      text_,
      make("button", {
        type: "button",
        class: "quiet",
        "aria-label": "Remove the field",
        text: "×",
        onclick: () => row.remove(),
      }),
    );
    ranges.append(row);
  }

  /**
   * A range around the present value of a field.
   *
   * @param {string} path
   */
  function suggestion(path) {
    const field = fieldsOf(specText()).get(path);
    const value = field ? specText().slice(field.from, field.to).trim() : "";
    const current = Number(value);
    if (value === "" || !Number.isFinite(current)) return "";
    if (/^\d+$/.test(value)) return current > 0 ? `int:${Math.max(1, Math.floor(current / 2))}:${current * 2}` : "";
    return current > 0 ? `log:${(current / 10).toPrecision(2)}:${(current * 10).toPrecision(2)}` : "";
  }

  function fillFields() {
    byId("sweep-fields").replaceChildren(...[...fieldsOf(specText()).keys()].map((value) => make("option", { value })));
  }

  /** @param {string} message */
  function explain(message) {
    setMessage(byId("sweep-problem"), message);
    byId("sweep-problem").hidden = !message;
  }

  async function start() {
    const document_ = resolvedSpec();
    if (!document_) {
      explain(
        document_ === null
          ? "The spec has problems, which are listed above, or is still being planned."
          : "This service does not plan specs, which this form needs. Start the sweep with `trainyard sweep`.",
      );
      return;
    }
    const given = [...ranges.children]
      .map((row) => [...row.querySelectorAll("input")].map((input) => input.value.trim()))
      .filter(([path]) => path)
      .map(([path, range]) => [path, /^[^:]+,[^:]+$/.test(range) ? `choice:${range}` : range]); // values alone are a choice
    if (!given.length) {
      explain("Add at least one field and its range.");
      return;
    }
    const value = (/** @type {string} */ id) => /** @type {HTMLInputElement | HTMLSelectElement} */ (byId(id)).value;
    const number = (/** @type {string} */ id) => (value(id) ? Number(value(id)) : undefined);
    const search = {
      algorithm: value("sweep-algorithm"),
      space: Object.fromEntries(given),
      metric: value("sweep-metric") || undefined,
      mode: value("sweep-mode") || undefined,
      max_trials: number("sweep-trials"),
      max_gpu_hours: number("sweep-hours"),
    };
    button.disabled = true;
    try {
      const sweep = await call("/v1/sweeps", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ spec: document_, search, max_parallel: number("sweep-parallel") }),
      });
      location.assign(urlOf(`/compare?sweep=${encodeURIComponent(sweep.id)}`));
    } catch (error) {
      /** @type {Problem[]} */
      const problems = error.problems?.length ? error.problems : [{ param: error.param, message: error.message }];
      explain(problems.map(({ param, message }) => [param, message].filter(Boolean).join(" ")).join("; "));
      button.disabled = false;
    }
  }

  /** Only one button is prominent: that of the search while its form is open, which one job would ignore. */
  function showPurpose() {
    const { open } = section;
    setText(byId("submit"), open ? "Submit one job" : "Submit");
    byId("submit").classList.toggle("primary", !open);
  }

  section.addEventListener("toggle", showPurpose);
  onOpen(section, () => {
    showPurpose();
    fillFields();
    if (!ranges.children.length) add("optimizer.lr", suggestion("optimizer.lr"));
  });
  byId("sweep-add").addEventListener("click", () => {
    fillFields();
    add();
  });
  button.addEventListener("click", start);
}
