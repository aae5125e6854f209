// The marks of a job's charts: where its runs were interrupted and resumed, by step and time. Pure functions.

const INTERRUPTIONS = new Set([
  "preempted",
  "time_limit",
  "node_failure",
  "error",
  "out_of_memory",
  "disk_full",
  "stalled",
  "cancelled_outside",
]);
const STARTS = new Set(["worker.training_started", "worker.training_resumed"]);

/**
 * The marks of a job's attempts and events, which may be in any order.
 *
 * An attempt has only the step from which its newest execution resumed. The events have the first step of each
 * execution, including those that torchrun restarted within an attempt.
 *
 * @param {Api.AttemptResource[]} attempts
 * @param {Api.EventResource[]} events
 * @returns {{ resumed: StepMark[], interrupted: StepMark[] }} marks, each a step, null if unknown, and a time.
 
 */
export function marksOf(attempts, events) {
  const ordered = [...events].sort(
    (one, other) => Date.parse(one.created_at) - Date.parse(other.created_at) || eventNumber(one) - eventNumber(other),
  );
  const starts = ordered
    .filter((event) => STARTS.has(event.type))
    .map(({ data, created_at }) => ({ step: data.step ?? null, time: created_at }));
  const resumedWithoutEvent = attempts.filter(
    (one) => one.resumed_from_step && !startsOf(one, attempts, starts).length,
  );
  return {
    resumed: [
      ...resumedWithoutEvent.map((one) => ({ step: one.resumed_from_step, time: one.started_at })),
      ...starts.filter((one) => one.step),
    ],
    interrupted: [
      ...attempts
        .filter((one) => INTERRUPTIONS.has(one.exit_reason ?? ""))
        .map((one) => ({ step: nextStartStep(one, attempts, starts), time: one.ended_at })),
      ...ordered
        .filter((event) => event.type === "worker.restarted_in_place")
        .map(({ created_at }) => ({ step: lastStartStep(starts, created_at), time: created_at })),
    ],
  };
}

/**
 * `evt_12` as 12: events of the same time are ordered by id.
 *
 * @param {Api.EventResource} event
 */
const eventNumber = (event) => Number(event.id.slice("evt_".length));

/**
 * @param {Api.AttemptResource} attempt
 * @param {Api.AttemptResource[]} attempts
 */
const successor = (attempt, attempts) => attempts.find((next) => next.number === attempt.number + 1);

/**
 * The starts of an attempt's executions: those between its start and that of the next attempt.
 *
 * @param {Api.AttemptResource} attempt
 * @param {Api.AttemptResource[]} attempts
 * @param {StepMark[]} starts
 */
function startsOf(attempt, attempts, starts) {
  const from = Date.parse(attempt.started_at ?? "");
  const to = Date.parse(successor(attempt, attempts)?.started_at ?? "9999-01-01");
  return starts.filter(({ time }) => Date.parse(time ?? "") >= from && Date.parse(time ?? "") < to);
}

/**
 * The step from which the next attempt resumed; null if there is none, or if it started at step 0.
 *
 * @param {Api.AttemptResource} attempt
 * @param {Api.AttemptResource[]} attempts
 * @param {StepMark[]} starts
 */
function nextStartStep(attempt, attempts, starts) {
  const next = successor(attempt, attempts);
  if (!next) return null;
  return (startsOf(next, attempts, starts)[0]?.step ?? next.resumed_from_step) || null;
}

/**
 * The step of the last start before a time. The event of a restart follows the start of its execution.
 *
 * @param {StepMark[]} starts
 * @param {string} time
 */
const lastStartStep = (starts, time) =>
  starts.filter((one) => Date.parse(one.time ?? "") <= Date.parse(time)).at(-1)?.step || null;
