// Server-sent events, read by fetch: an EventSource tells neither why it was refused nor that nothing comes any more.

import { toSignIn } from "./api.js";

const SILENCE = 40_000; // the service says something every 15 seconds
const LONGEST_WAIT = 3_000; // a reader looks, and asks no more than this

const connections = new Set();
let held = null;

/** Break all streams off until the answer is called: what they follow may be gone in a moment. */
export function holdStreams() {
  let release;
  held = new Promise((resolve) => { release = () => { held = null; resolve(); }; });
  for (const connection of connections) connection.abort();
  return release;
}

/** Whether `holdStreams` holds: no time to ask either. */
export const areHeld = () => held !== null;

/**
 * Follow a stream from a place on, and take it up again there whenever it breaks off.
 *
 * @param path of the stream; `after` is where to begin (none: now).
 * @param on handlers by the type of event: `(data, id) => void`.
 * @param onState "live" once connected, "lost" when not, "" when it has ended for good.
 * @returns {{ close: () => void, last: () => string | null }}
 */
export function follow(path, { after = null, on, onState = () => {} }) {
  let last = after === null ? null : String(after);
  let waited = 0;
  let closed = false;
  let current;

  async function run() {
    while (!closed) {
      if (held) await held;
      current = new AbortController();
      connections.add(current);
      try {
        if ((await connect(current)) === "over") break;
        waited = 0; // it was a clean end: the service restarts, or we were too slow
      } catch (error) {
        if (closed) return;
        if (held) continue;
      } finally {
        connections.delete(current);
      }
      onState("lost");
      waited = Math.min(LONGEST_WAIT, waited ? waited * 2 : 500);
      await wakeable(waited);
    }
    if (!closed) onState("");
  }

  async function connect(controller) {
    const headers = { Accept: "text/event-stream" };
    if (last !== null) headers["Last-Event-ID"] = last;
    const answer = await fetch(path, { headers, signal: controller.signal, credentials: "same-origin", cache: "no-store" });
    if (answer.status === 204) return "over";
    if (answer.status === 401) { toSignIn(); return "over"; }
    if (answer.status === 404) return "over";
    if (!answer.ok) throw new Error(`the stream answered ${answer.status}`);
    waited = 0;
    onState("live");
    await read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), controller);
    return "again";
  }

  async function read(reader, controller) {
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => controller.abort(), SILENCE);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) dispatch(part);
    }
  }

  function dispatch(block) {
    const fields = { event: "message", data: "" };
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue; // a comment: the service is alive
      fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.id !== undefined) last = fields.id;
    if (fields.data && on[fields.event]) on[fields.event](JSON.parse(fields.data), fields.id);
  }

  run();
  return {
    close() { closed = true; current?.abort(); },
    last: () => last,
  };
}

/** A pause that ends early when the network or the page comes back. */
function wakeable(milliseconds) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      removeEventListener("online", wake);
      document.removeEventListener("visibilitychange", wake);
      resolve();
    };
    const timer = setTimeout(wake, milliseconds);
    addEventListener("online", wake);
    document.addEventListener("visibilitychange", wake);
  });
}
