// Requests to the public API, authenticated by the session's cookie.

import { currentPath, urlOf } from "./address.js";
import { visitor } from "./page.js";
import { outsidePauses } from "./read_pause.js";

/** An error response of the API. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {any} body
   */
  constructor(status, body) {
    super(body?.error?.message ?? `The service returned status ${status}.`);
    this.status = status;
    /** @type {string} */
    this.code = body?.error?.code ?? "";
    /** @type {string | null} */
    this.param = body?.error?.param ?? null;
    /** @type {Api.ErrorBody[]} */
    /** @type {Problem[]} */
    this.problems = body?.problems ?? [];
  }
}

/** Go to the sign-in page, which returns to this page. */
export function redirectToSignIn() {
  location.assign(urlOf(`/sign-in?next=${encodeURIComponent(currentPath())}`));
}

const leaving = new AbortController();
document.querySelector(`form[action="${urlOf("/sign-out")}"]`)?.addEventListener("submit", () => leaving.abort());

/** Aborted when the user signs out: a request that arrives after the end of the session would be refused. */
export const signedOut = leaving.signal;

/**
 * The response to a request. Throws ApiError, or an Error if the service does not answer.
 *
 * @param {string} path
 * @param {RequestOptions} options
 */
export async function request(path, options = {}) {
  if ((options.method ?? "GET") !== "GET") return send(path, options);
  return outsidePauses(({ signal }) =>
    send(path, { ...options, signal: options.signal ? AbortSignal.any([options.signal, signal]) : signal }),
  );
}

/**
 * @param {string} path
 * @param {RequestOptions} options
 */
async function send(path, { method = "GET", body, headers = {}, signal }) {
  const sent = { ...headers };
  if (method !== "GET") sent["X-CSRF-Token"] = visitor.csrf;
  if (body !== undefined && typeof body !== "string" && !(body instanceof Uint8Array)) {
    sent["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  const either = signal ? AbortSignal.any([signal, signedOut]) : signedOut;
  const response = await fetch(urlOf(path), {
    method,
    body,
    headers: sent,
    signal: either,
    credentials: "same-origin",
  }).catch((error) => {
    throw either.aborted ? error : new Error("The service does not answer.");
  });
  if (response.status === 401) redirectToSignIn();
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  return response;
}

/**
 * The JSON of a response; null if it has no content.
 *
 * @param {string} path
 * @param {RequestOptions} [options]
 * @returns {Promise<any>}
 */
export async function call(path, options) {
  const response = await request(path, options);
  return response.status === 204 ? null : response.json();
}

/**
 * The items of all pages of a list.
 *
 * @param {string} path
 * @param {QueryParameters} filters
 * @returns {Promise<any[]>}
 */
export async function callAll(path, filters = {}) {
  /** @type {any[]} */
  const items = [];
  for (let page = null; page === null || (page.has_more && page.last_id); ) {
    page = await call(path + query({ ...filters, limit: 200, after: page?.last_id }));
    items.push(...page.data);
  }
  return items;
}

/**
 * A query string. Empty values are left out, and lists become repeated parameters.
 *
 * @param {QueryParameters} parameters
 */
export function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") search.append(name, String(one));
    }
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

/** A new name of a request, with which it can be repeated. */
export const newKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
