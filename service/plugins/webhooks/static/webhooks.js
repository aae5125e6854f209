// The page of webhooks: creating, testing and deleting them, and their recent deliveries.

import { urlOf } from "./address.js";
import { clearErrors, showError, showSecret } from "./admin_forms.js";
import { call, query } from "./api.js";
import { count } from "./format.js";
import { byId, confirmAction, formatTimes, make, onOpen, toast, toastError, within } from "./page.js";

const MAX_DELIVERIES = 20;
const MAX_POLLS = 60; // for the first result of a test
const POLL_INTERVAL = 1000;
/** @type {Record<string, [string, string]>} */
const STATES = { delivered: ["good", "delivered"], waiting: ["wait", "pending"], given_up: ["bad", "failed"] };

const form = byId("create", HTMLFormElement);

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearErrors(form);
  const values = new FormData(form);
  const body = {
    url: String(values.get("url")).trim(),
    jobs: values.get("jobs"),
    format: values.get("format"),
    statuses: values.getAll("statuses"),
  };
  try {
    const webhook = await call("/v1/webhooks", { method: "POST", body });
    await showSecret("Webhook signing key", webhook.secret);
    location.assign(urlOf("/admin/webhooks"));
  } catch (error) {
    showError(form, error);
  }
});

for (const card of document.querySelectorAll(".webhook")) {
  const root = `/v1/webhooks/${card.dataset.id}`;
  const details = within(card, "details", HTMLDetailsElement);
  onOpen(details, () => {
    readDeliveries(card, root).catch(toastError);
  });
  const [test, drop] = [within(card, ".test", HTMLButtonElement), within(card, ".delete", HTMLButtonElement)];
  test.addEventListener("click", () => runAction(test, () => sendTest(card, root)));
  drop.addEventListener("click", () => runAction(drop, () => deleteWebhook(card, root)));
}

/**
 * @param {HTMLButtonElement} button
 * @param {() => Promise<void>} action
 */
async function runAction(button, action) {
  button.disabled = true;
  try {
    await action();
  } catch (error) {
    toastError(error);
  }
  button.disabled = false;
}

/**
 * @param {HTMLElement} card
 * @param {string} root
 * @returns {Promise<Api.DeliveryResource[]>}
 */
async function readDeliveries(card, root) {
  const { data } = await call(`${root}/deliveries${query({ limit: MAX_DELIVERIES })}`);
  within(card, "tbody").replaceChildren(...data.map(deliveryRow));
  formatTimes(card);
  return data;
}

/** @param {Api.DeliveryResource} delivery */
function deliveryRow(delivery) {
  const [tone, label] = STATES[delivery.state];
  const subject = delivery.job_id
    ? make("a", { href: urlOf(`/jobs/${delivery.job_id}`), class: "mono", text: delivery.job_id })
    : null;
  return make(
    "tr",
    {},
    make("td", {}, make("time", { datetime: delivery.created_at })),
    make("td", {}, subject ? "status of " : delivery.type === "test" ? "test" : "excluded node", subject),
    make("td", {}, make("span", { class: `chip ${tone}`, text: label })),
    make("td", { class: "right", text: count(delivery.attempts) }),
    make("td", { class: "answer", text: [delivery.answer_status, delivery.error].filter(Boolean).join(": ") }),
  );
}

/**
 * Send a test, and wait until it was delivered or has failed once.
 *
 * @param {HTMLElement} card
 * @param {string} root
 */
async function sendTest(card, root) {
  const test = await call(`${root}/test`, { method: "POST" });
  within(card, "details", HTMLDetailsElement).open = true;
  for (let poll = 0; poll < MAX_POLLS; poll += 1) {
    const delivery = (await readDeliveries(card, root)).find((one) => one.id === test.id);
    if (!delivery || delivery.attempts > 0 || delivery.state !== "waiting") {
      const delivered = delivery?.state === "delivered";
      toast(delivered ? "Test delivered." : "Test not delivered; it will be retried.", { bad: !delivered });
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
  }
}

/**
 * @param {HTMLElement} card
 * @param {string} root
 */
async function deleteWebhook(card, root) {
  const address = within(card, ".mono").textContent;
  if (
    !(await confirmAction(
      "Delete this webhook?",
      `${address} receives no more events; pending deliveries are dropped.`,
      "Delete",
    ))
  )
    return;
  await call(root, { method: "DELETE" });
  card.remove();
  toast("Webhook deleted.");
}
