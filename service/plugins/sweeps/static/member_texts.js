// The texts about a member of a sweep: its state, and what it changes.

import { specValue } from "./format.js";
import { tone } from "./job_status.js";

/**
 * The names of the states that no job has.
 *
 * @type {Record<string, string>}
 */
export const MEMBER_STATES = { stopped_early: "stopped early", paused: "paused at a rung" };

/**
 * The text and the CSS class of a member's chip: what the sweep has decided, else the job's status.
 *
 * @param {{ state?: string, status?: string | null }} member
 * @returns {{ text: string, tone: string }}
 */
export function chipOf({ state, status }) {
  const shown = (state === "stopped_early" || !status ? state : status) ?? "";
  return { text: MEMBER_STATES[state ?? ""] ?? shown, tone: state === "stopped_early" ? "" : tone(shown) };
}

/**
 * The fields that a sweep's member changes: `lr 0.001, size 32`.
 *
 * @param {{ values: Record<string, any> }} member
 */
export const memberChanges = (member) =>
  Object.entries(member.values)
    .map(([field, value]) => `${field.split(".").at(-1)} ${specValue(value)}`)
    .join(", ");
