// The public API, by the cookie of this session.

import { visitor } from "./page.js";

/** An answer of the API that is no success; `message` is what it says. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `the service answered ${status}`);
    this.status = status;
    this.code = body?.error?.code ?? "";
    this.param = body?.error?.param ?? null;
    this.problems = body?.problems ?? [];
  }
}

/** The session is over: sign in, and come back here. */
export function toSignIn() {
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
}

/** The answer itself. Raises ApiError, or an Error with words about it where nothing answers. */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (method !== "GET") sent["X-CSRF-Token"] = visitor.csrf;
  if (body !== undefined && typeof body !== "string" && !(body instanceof Uint8Array)) {
    sent["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  const answer = await fetch(path, { method, body, headers: sent, signal, credentials: "same-origin" }).catch((error) => {
    throw signal?.aborted ? error : new Error("The service does not answer.");
  });
  if (answer.status === 401) toSignIn();
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  return answer;
}

/** The answer's JSON; null where it has none. */
export async function call(path, options) {
  const answer = await ask(path, options);
  return answer.status === 204 ? null : answer.json();
}

/** A query of pairs; those without a value are left out, lists are repeated. */
export function query(pairs) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(pairs)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") found.append(name, one);
    }
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}
