// Webhooks: making, testing and deleting them, and what each was told last.

import { complain, forgive, reveal } from "./admin.js";
import { call, query } from "./api.js";
import { count } from "./format.js";
import { byId, confirmed, localTimes, make, say } from "./page.js";

const SHOWN = 20;
const PATIENCE = 60; // looks at a message that has not arrived yet
const PAUSE = 1000;
const STATES = { delivered: ["good", "delivered"], waiting: ["wait", "pending"], given_up: ["bad", "failed"] };

const form = byId("new");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  forgive(form);
  const told = new FormData(form);
  const body = { url: told.get("url").trim(), jobs: told.get("jobs"), statuses: told.getAll("statuses") };
  try {
    const made = await call("/v1/webhooks", { method: "POST", body });
    await reveal("Webhook signing key", made.secret);
    location.assign("/admin/webhooks");
  } catch (error) {
    complain(form, error);
  }
});

for (const card of document.querySelectorAll(".webhook")) {
  const root = `/v1/webhooks/${card.dataset.id}`;
  const details = card.querySelector("details");
  details.addEventListener("toggle", () => { if (details.open) read(card, root).catch((error) => complain(null, error)); });
  card.querySelector(".test").addEventListener("click", (event) => act(event.target, () => test(card, root)));
  card.querySelector(".delete").addEventListener("click", (event) => act(event.target, () => remove(card, root)));
}

async function act(button, work) {
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    complain(null, error);
  }
  button.disabled = false;
}

async function read(card, root) {
  const { data } = await call(`${root}/deliveries${query({ limit: SHOWN })}`);
  card.querySelector("tbody").replaceChildren(...data.map(line));
  localTimes(card);
  return data;
}

function line(delivery) {
  const [tone, word] = STATES[delivery.state];
  const about = delivery.job_id ? make("a", { href: `/jobs/${delivery.job_id}`, class: "mono", text: delivery.job_id }) : null;
  return make("tr", {},
    make("td", {}, make("time", { datetime: delivery.created_at })),
    make("td", {}, delivery.type === "test" ? "test " : "status of ", about),
    make("td", {}, make("span", { class: `chip ${tone}`, text: word })),
    make("td", { class: "right", text: count(delivery.attempts) }),
    make("td", { class: "answer", text: [delivery.answer_status, delivery.error].filter(Boolean).join(": ") }));
}

/** Send a message, and look until it has arrived or failed for the first time. */
async function test(card, root) {
  const sent = await call(`${root}/test`, { method: "POST" });
  card.querySelector("details").open = true;
  for (let look = 0; look < PATIENCE; look += 1) {
    const own = (await read(card, root)).find((one) => one.id === sent.id);
    if (!own || own.attempts > 0 || own.state !== "waiting") {
      say(own?.state === "delivered" ? "Test delivered." : "Test not delivered; it will be retried.", { bad: own?.state !== "delivered" });
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

async function remove(card, root) {
  const address = card.querySelector(".mono").textContent;
  if (!(await confirmed(byId("sure"), "Delete this webhook?", `${address} receives no more events; pending deliveries are dropped.`))) return;
  await call(root, { method: "DELETE" });
  card.remove();
  say("Webhook deleted.");
}
