// Where a job's curves were broken off and taken up again, by step and by time, from its attempts and its history. Pure.

const INTERRUPTED = new Set(["preempted", "time_limit", "node_failure", "error", "out_of_memory", "stalled", "cancelled_outside"]);
const BEGUN = new Set(["training_started", "training_resumed"]);

/**
 * The marks of a frame.
 *
 * An attempt tells only what its newest execution went on from. What torchrun began anew inside of it stands in the
 * history, where each execution says where it begins.
 *
 * @param attempts and events as the API tells them, in any order.
 */
export function marksOf(attempts, events) {
  const inTime = [...events].sort((one, other) => Date.parse(one.created_at) - Date.parse(other.created_at) || order(one) - order(other));
  const begun = inTime.filter((event) => BEGUN.has(event.type)).map(({ data, created_at }) => ({ step: data.step ?? null, time: created_at }));
  return {
    resumed: [...attempts.filter((one) => one.resumed_from_step && !told(one, attempts, begun)).map((one) => ({ step: one.resumed_from_step, time: one.started_at })),
      ...begun.filter((one) => one.step)],
    interrupted: [
      ...attempts.filter((one) => INTERRUPTED.has(one.exit_reason)).map((one) => ({ step: after(one, attempts, begun), time: one.ended_at })),
      ...inTime.filter((event) => event.type === "restarted_in_place").map(({ created_at }) => ({ step: stepBefore(begun, created_at), time: created_at })),
    ],
  };
}

/** `evt_12` as 12: those of one moment are in the order in which they were told. */
const order = (event) => Number(event.id.slice("evt_".length));

const successor = (attempt, attempts) => attempts.find((next) => next.number === attempt.number + 1);

/** What the history tells of an attempt: from its start to that of the next. */
function within(attempt, attempts, begun) {
  const from = Date.parse(attempt?.started_at);
  const to = Date.parse(successor(attempt, attempts)?.started_at ?? "9999-01-01");
  return begun.filter(({ time }) => Date.parse(time) >= from && Date.parse(time) < to);
}

const told = (attempt, attempts, begun) => within(attempt, attempts, begun).length > 0;

/** The step from which the next attempt went on; null where there is none, or it began at the start. */
function after(attempt, attempts, begun) {
  const next = successor(attempt, attempts);
  if (!next) return null;
  return (within(next, attempts, begun)[0]?.step ?? next.resumed_from_step) || null;
}

/** The line about a restart follows the one that says where its execution begins. */
const stepBefore = (begun, time) => begun.filter((one) => Date.parse(one.time) <= Date.parse(time)).at(-1)?.step || null;
