// The statuses of jobs: which are terminal, and the colour of each. A status is never shown by its colour alone.

export const TERMINAL = new Set(["succeeded", "failed", "cancelled"]);

/** Statuses in which a job does not run, so that its curves stay as they are. */
export const RESTING = new Set([...TERMINAL, "queued", "paused"]);

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

/** The CSS class of a status's chip. */
export const tone = (status) => TONES[status] ?? "off";

/** What the states of a sweep's members are called that no job has. */
export const MEMBER_STATES = { stopped_early: "stopped early", paused: "paused at a rung" };

/** The text and the CSS class of the chip of a sweep's member, or of a job without `state`: what the sweep has decided, else the job's status. */
export function chipOf({ state, status }) {
  const shown = state === "stopped_early" || !status ? state : status;
  return { text: MEMBER_STATES[state] ?? shown, tone: state === "stopped_early" ? "" : tone(shown) };
}
