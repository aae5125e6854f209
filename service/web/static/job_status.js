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
