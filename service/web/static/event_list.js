// The events of a job as a list, newest first. Status messages in a row that differ only in numbers, or in the jobs that
// are ahead, are one entry: the newest, how many there were, and since when.

import { count } from "./format.js";
import { formatTimes, make, parts } from "./page.js";

/**
 * What an event states; null if it is an entry of its own.
 *
 * @param {Api.EventResource} event
 */
const kindOf = ({ type, message, data }) =>
  type === "status"
    ? JSON.stringify([data.status, data.reason, message.replace(/ Ahead: .*/, "").replaceAll(/\d+/g, "0")])
    : null;

export class EventList {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** @type {Entry[]} */
    this.entries = [];
  }

  /**
   * Show a new event, or with `isOlder` one before those that are shown.
   *
   * @param {Api.EventResource} event
   */
  add(event, { isOlder = false } = {}) {
    const kind = kindOf(event);
    const neighbour = this.entries.at(isOlder ? -1 : 0);
    if (kind !== null && neighbour?.kind === kind) {
      Object.assign(neighbour, { size: neighbour.size + 1, [isOlder ? "oldest" : "newest"]: event });
      this.fill(neighbour);
      return;
    }
    const entry = { kind, size: 1, newest: event, oldest: event, item: make("li") };
    this.fill(entry);
    if (isOlder) {
      this.entries.push(entry);
      this.root.append(entry.item);
    } else {
      this.entries.unshift(entry);
      this.root.prepend(entry.item);
    }
  }

  /** @param {Entry} entry */
  fill({ size, newest, oldest, item }) {
    const repeated =
      size > 1
        ? make(
            "small",
            {},
            ` (${count(size)} times since `,
            make("time", { datetime: oldest.created_at, "data-format": "exact" }),
            ")",
          )
        : null;
    item.replaceChildren(
      make("time", { datetime: newest.created_at, "data-format": "exact" }),
      make("span", { class: newest.level }, ...parts(newest.message), ...(repeated ? [repeated] : [])),
    );
    formatTimes(item);
  }
}
