// Server-sent events, read with fetch: EventSource does not report the status of a refused request, detects no silent
// connection, and cannot start at a given `Last-Event-ID`.

import { urlOf } from "./address.js";
import { redirectToSignIn, signedOut } from "./api.js";
import { outsidePauses } from "./read_pause.js";

const SILENCE = 40_000; // milliseconds; the service sends a keep-alive every 15 seconds
const FIRST_RETRY = 500;
const MAX_RETRY = 3_000;

/**
 * Follow a stream, and reconnect at the last event whenever the connection is lost.
 *
 * @param {string} path of the stream; `after` is the id after which it starts (null: now).
 * @param {{ after?: string | number | null, on: Handlers, onState?: (state: "live" | "lost" | "") => void }} options
 *   `on` has handlers by the type of event. `onState` gets "live" when connected, "lost" when disconnected or refused, "" when
 *   the stream has ended for good.
 * @returns {{ close: () => void, last: () => string | null }} `last` is the id of the last event.
 */
export function follow(path, { after = null, on, onState = () => {} }) {
  let last = after === null ? null : String(after);
  let delay = 0;
  let closed = false;
  let controller = /** @type {AbortController | null} */ (null);

  async function run() {
    while (!closed) {
      const begin = last;
      try {
        if ((await outsidePauses(connect)) === "ended") break;
        // A clean end: the job has ended, which the next response says, the service restarts, or this client was too slow.
        if (last !== begin) continue;
      } catch (error) {
        if (closed) return;
        onState("lost");
      }
      delay = Math.min(MAX_RETRY, delay ? delay * 2 : FIRST_RETRY);
      await interruptiblePause(delay);
    }
    if (!closed) onState("");
  }

  /** @param {AbortController} current */
  async function connect(current) {
    if (closed) return "ended";
    controller = current;
    const headers = new Headers({ Accept: "text/event-stream" });
    if (last !== null) headers.set("Last-Event-ID", last);
    const signal = AbortSignal.any([current.signal, signedOut]);
    const response = await fetch(urlOf(path), { headers, signal, credentials: "same-origin", cache: "no-store" });
    if (response.status === 401) redirectToSignIn();
    if ([204, 401, 404].includes(response.status)) return "ended";
    if (!response.ok) throw new Error(`the stream returned status ${response.status}`);
    delay = 0;
    onState("live");
    await read(
      /** @type {ReadableStream<BufferSource>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader(),
      current,
    );
    return "interrupted";
  }

  /**
   * @param {ReadableStreamDefaultReader<string>} reader
   * @param {AbortController} current
   */
  async function read(reader, current) {
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => current.abort(), SILENCE);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) dispatch(block);
    }
  }

  /** @param {string} block */
  function dispatch(block) {
    /** @type {Record<string, string>} */
    const fields = { event: "message", data: "" };
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue; // a comment, as keep-alives are
      fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.id !== undefined) last = fields.id;
    if (fields.data && on[fields.event]) on[fields.event](JSON.parse(fields.data), fields.id);
  }

  run();
  return {
    close() {
      closed = true;
      controller?.abort();
    },
    last: () => last,
  };
}

/**
 * A pause that ends early when the network or the page becomes available again.
 *
 * @param {number} milliseconds
 * @returns {Promise<void>}
 */
function interruptiblePause(milliseconds) {
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
