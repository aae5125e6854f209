// The statuses of jobs: which are terminal, and the colour of each. A status is never shown by its colour alone.

/** @type {Set<unknown>} */
export const TERMINAL = new Set(["succeeded", "failed", "cancelled"]);

/**
 * Statuses in which a job does not run, so that its curves stay as they are.
 *
 * @type {Set<unknown>}
 */
export const RESTING = new Set([...TERMINAL, "queued", "paused"]);

/** @type {Record<string, string>} */
export const TONES = {
  queued: "wait",
  submitting: "wait",
  pending: "wait",
  running: "run",
  pausing: "run",
  cancelling: "run",
  paused: "rest",
  lost: "bad",
  succeeded: "good",
  failed: "bad",
  cancelled: "off",
};

/**
 * The CSS class of a status's chip.
 *
 * @param {string | null} status
 */
export const tone = (status) => TONES[status ?? ""] ?? "off";

/**
 * What the states of a sweep's members are called that no job has.
 *
 * @type {Record<string, string>}
 */
export const MEMBER_STATES = { stopped_early: "stopped early", paused: "paused at a rung" };

/**
 * The text and the CSS class of the chip of a sweep's member, or of a job without `state`: what the sweep has decided, else the job's status.
 *
 * @param {{ state?: string, status?: string | null }} member
 * @returns {{ text: string, tone: string }}
 */
export function chipOf({ state, status }) {
  const shown = (state === "stopped_early" || !status ? state : status) ?? "";
  return { text: MEMBER_STATES[state ?? ""] ?? shown, tone: state === "stopped_early" ? "" : tone(shown) };
}
