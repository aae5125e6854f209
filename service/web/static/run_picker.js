// The search field that adds a run to the comparison.

import { urlOf } from "./address.js";
import { call, query } from "./api.js";
import { tone } from "./job_status.js";
import { make, toastError } from "./page.js";

const PAUSE = 200; // milliseconds after the last key before the API is searched
const MAX_RESULTS = 8;

/**
 * Connect the search field `input` to `list`, which shows the results; `compared` are the ids of the compared runs.
 *
 * @param {HTMLInputElement} input
 * @param {HTMLElement} list
 * @param {string[]} compared
 */
export function connectPicker(input, list, compared) {
  let timer = 0;
  let newest = 0;

  async function search() {
    const own = ++newest;
    const page = await call(`/v1/jobs${query({ search: input.value.trim(), limit: MAX_RESULTS + compared.length })}`);
    if (own !== newest) return;
    const results = page.data.filter((/** @type {Job} */ job) => !compared.includes(job.id)).slice(0, MAX_RESULTS);
    list.replaceChildren(
      ...(results.length
        ? results.map(resultItem)
        : [make("li", {}, make("p", { text: "No other job with that name." }))]),
    );
    list.hidden = false;
  }

  /** @param {Job} job */
  function resultItem(job) {
    const address = new URLSearchParams(location.search);
    address.append("job", job.id);
    return make(
      "li",
      {},
      make(
        "a",
        { href: urlOf(`/compare?${address}`) },
        make("span", { text: job.name, title: job.id }),
        make("span", { class: `chip ${tone(job.status)}`, text: job.status }),
      ),
    );
  }

  /** @param {number} pause */
  const schedule = (pause) => {
    clearTimeout(timer);
    timer = setTimeout(() => search().catch(toastError), pause);
  };
  input.addEventListener("input", () => schedule(PAUSE));
  input.addEventListener("focus", () => schedule(0));
  const root = /** @type {HTMLElement} */ (input.parentElement);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      list.hidden = true;
      input.focus();
      clearTimeout(timer);
    }
    const offset = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!offset || list.hidden) return;
    event.preventDefault();
    const stops = [input, ...list.querySelectorAll("a")];
    const current = stops.findIndex((stop) => stop === document.activeElement);
    stops[(current + offset + stops.length) % stops.length].focus();
  });
  document.addEventListener("click", (event) => {
    if (!root.contains(/** @type {Node} */ (event.target))) list.hidden = true;
  });
}
