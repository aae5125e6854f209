// Finding a run by its name, to compare it with those that are there.

import { call, query } from "./api.js";
import { make, say } from "./page.js";
import { tone } from "./rows.js";

const PAUSE = 200;
const SHOWN = 8;

/** `input` is where one types, `list` where what is found appears; `known` are the ids that are compared already. */
export function pick(input, list, known) {
  let timer;
  let asked = 0;

  async function find() {
    const own = ++asked;
    const told = await call(`/v1/jobs${query({ search: input.value.trim(), limit: SHOWN + known.length })}`);
    if (own !== asked) return;
    const fresh = told.data.filter((job) => !known.includes(job.id)).slice(0, SHOWN);
    list.replaceChildren(...(fresh.length ? fresh.map(line) : [make("li", {}, make("p", { text: "No other job with that name." }))]));
    list.hidden = false;
  }

  function line(job) {
    const address = new URLSearchParams(location.search);
    address.append("job", job.id);
    return make("li", {}, make("a", { href: `/compare?${address}` },
      make("span", { text: job.name, title: job.id }), make("span", { class: `chip ${tone(job.status)}`, text: job.status })));
  }

  const soon = (pause) => {
    clearTimeout(timer);
    timer = setTimeout(() => find().catch((error) => say(error.message, { bad: true })), pause);
  };
  input.addEventListener("input", () => soon(PAUSE));
  input.addEventListener("focus", () => soon(0));
  input.parentElement.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { list.hidden = true; input.focus(); clearTimeout(timer); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || list.hidden) return;
    event.preventDefault();
    const places = [input, ...list.querySelectorAll("a")];
    places[(places.indexOf(document.activeElement) + step + places.length) % places.length].focus();
  });
  document.addEventListener("click", (event) => { if (!input.parentElement.contains(event.target)) list.hidden = true; });
}
