// Takes the code of `trainyard open` from the fragment of the address, which browsers do not send, and posts it.

import { urlOf } from "./address.js";

const form = document.querySelector("form#code-form");

/** @param {string} name */
const field = (name) => /** @type {HTMLInputElement} */ (form?.elements.namedItem(name));

function takeCode() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const code = parameters.get("code");
  if (!code || !form) return;
  history.replaceState(null, "", urlOf("/sign-in")); // neither the history nor a copied address has the code
  field("code").value = code;
  field("next").value = parameters.get("next") ?? "";
  form.submit();
}

if (form) {
  addEventListener("hashchange", takeCode);
  takeCode();
} else {
  // The question. A visitor who goes back to it, or reloads it, gets the sign-in instead of sending the code again.
  history.replaceState(null, "", urlOf("/sign-in"));
}
