// The page of a sweep: the comparison of its members, with their ranking, and with their coordinates.

import { call } from "./api.js";
import { addOptions, REFRESH_INTERVAL, showComparison } from "./compare.js";
import { asNumber } from "./format.js";
import { TERMINAL } from "./job_status.js";
import { chipOf, memberChanges } from "./member_texts.js";
import { byId, confirmAction, data, maybeById, setText, toast, toastError } from "./page.js";
import { hasRatios, ParallelCoordinates } from "./parallel_coordinates.js";
import { SweepRanking } from "./sweep_ranking.js";

/** @param {{ size: number }} options */
const sizeText = ({ size }) => `${size} ${size === 1 ? "job" : "jobs"}`;

/**
 * The members of the sweep, as a group of runs.
 *
 * @implements {RunGroup}
 */
class Members {
  /** @param {Comparison} comparison */
  constructor(comparison) {
    const { runs, highlight, filter } = comparison;
    this.comparison = comparison;
    /** @type {Api.SweepDetail} */
    this.sweep = data.sweep;
    this.isOpenedEmpty = this.sweep.members.length === 0;
    this.outcome = new URLSearchParams(location.search).get("outcome") ?? data.outcome;
    this.metric = this.sweep.metric;
    this.runOf = new Map(runs.map((run) => [run.id, run]));
    this.jobNames = new Map(runs.map(({ id, name }) => [id, name]));
    this.memberOf = byJob(this.sweep);
    this.#nameRuns();
    const box = maybeById("parallel");
    this.parallel = box && new ParallelCoordinates(box, { highlight, filtered: filter });
    this.ranking = new SweepRanking(
      this.sweep,
      (member) => this.#nameOf(member),
      (id) => {
        if (runs.length) highlight(id);
      },
    );
    const outcome = maybeById("outcome", HTMLSelectElement);
    outcome?.addEventListener("change", () => this.#select(outcome.value));
    maybeById("cancel")?.addEventListener("click", () => this.#cancel());
    byId("show-new").addEventListener("click", () => location.reload());
    if (!runs.length)
      setInterval(() => {
        if (!document.hidden) this.read().catch(() => {});
      }, REFRESH_INTERVAL);
  }

  /**
   * The name of a member with its number, since all have the same name.
   *
   * @param {Api.SweepMember} member
   */
  #nameOf(member) {
    return `${this.jobNames.get(member.job_id) ?? [...this.jobNames.values(), this.sweep.name][0]} #${member.number}`;
  }

  #nameRuns() {
    for (const member of this.sweep.members) {
      const run = this.runOf.get(member.job_id);
      if (run) run.name = `${this.#nameOf(member)}: ${memberChanges(member)}`;
    }
  }

  get isRunning() {
    return this.sweep.state === "running";
  }

  async read() {
    /** @type {Api.SweepDetail} */
    const sweep = await call(`/v1/sweeps/${this.sweep.id}`);
    this.sweep = sweep;
    this.memberOf = byJob(sweep);
    this.ranking.show(sweep);
    setText(byId("sweep-size"), sizeText(sweep));
    this.#showCoordinates();
    const added = sweep.members.filter((member) => member.status && !this.runOf.has(member.job_id)).length;
    if (added && this.isOpenedEmpty) {
      location.reload();
      return;
    } // the page has no charts, nor a button to cancel, for its first runs
    byId("show-new").hidden = !added;
    setText(byId("show-new"), `Show the curves of ${added} new ${added === 1 ? "run" : "runs"}`);
  }

  /** @param {string} id */
  stateOf(id) {
    return this.memberOf.get(id);
  }

  /** @param {Run} run */
  chipOf({ id, status }) {
    return chipOf({ state: this.memberOf.get(id)?.state, status });
  }

  /** Show the coordinates, and the button that cancels the sweep while any member is not finished. */
  show() {
    this.#showCoordinates();
    const button = maybeById("cancel");
    const isFinished = this.comparison.runs.every((run) => run.status && TERMINAL.has(run.status));
    if (button) button.hidden = isFinished && !this.isRunning;
  }

  /** @param {string | null} id */
  highlight(id) {
    this.parallel?.highlight(id);
    this.ranking.mark(id);
  }

  /** @param {string[]} keys */
  addMetrics(keys) {
    this.outcome ||= this.comparison.view.key ?? "";
    const select = maybeById("outcome", HTMLSelectElement);
    if (select) addOptions(select, keys, this.outcome, "no metric yet");
  }

  /** @param {string} outcome */
  #select(outcome) {
    this.outcome = outcome;
    const address = new URLSearchParams(location.search);
    if (outcome === data.outcome) address.delete("outcome");
    else address.set("outcome", outcome);
    history.replaceState(null, "", `${location.pathname}?${address}`);
    this.#showCoordinates();
  }

  /** Show the members as lines across the fields of the sweep and the chosen metric. */
  #showCoordinates() {
    const { members } = this.sweep;
    const fields = [...new Set(members.flatMap((member) => Object.keys(member.values)))];
    this.parallel?.show({
      logarithmic: [...fields.map((field) => this.ranking.logarithmic(field)), hasRatios(this.outcome) ? null : false],
      axes: [...fields, this.outcome || "no metric yet"],
      lines: members
        .filter((member) => this.runOf.has(member.job_id))
        .map((member) => ({
          id: member.job_id,
          name: this.runOf.get(member.job_id)?.name ?? "",
          values: [
            ...fields.map((field) => member.values[field] ?? null),
            asNumber(member.metrics[this.outcome] ?? null),
          ],
        })),
    });
  }

  async #cancel() {
    if (
      !(await confirmAction(
        "Cancel the remaining jobs of this sweep?",
        "Waiting jobs will not start, and running jobs will stop. Checkpoints and metrics are kept.",
        "Cancel jobs",
        "Keep",
      ))
    )
      return;
    await call(`/v1/sweeps/${this.sweep.id}/cancel`, { method: "POST" }).then(
      () => toast("Cancelling the remaining jobs."),
      toastError,
    );
    await this.comparison.refresh();
  }
}

/** @param {Api.SweepDetail} sweep */
function byJob(sweep) {
  return new Map(sweep.members.map((member) => [member.job_id, member]));
}

showComparison((comparison) => new Members(comparison));
