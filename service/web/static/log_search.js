// A search of a whole log by the service, one page of matching lines after the other.

import { call, query } from "./api.js";
import { cleanLines } from "./log_lines.js";

const PAGE = 200;

/**
 * What to search for: a part of a line, or `/a regular expression/`.
 *
 * @param {string} text
 * @param {string} level
 * @returns {LogQuery}
 */
export function wanted(text, level) {
  const expression = /^\/(.+)\/$/.exec(text);
  return { text: expression ? expression[1] : text, regex: expression ? "true" : undefined, level };
}

/**
 * The next matching lines from a position on.
 *
 * @param {string} jobId
 * @param {LogSelection} selection
 * @param {Partial<LogQuery>} search
 * @param {QueryParameters} [position]
 * @param {AbortSignal} [signal]
 */
export async function searchPage(jobId, selection, search, position = {}, signal) {
  const page = await call(
    `/v1/jobs/${jobId}/logs/search${query({ limit: PAGE, ...selection, ...search, ...position })}`,
    { signal },
  );
  /** @type {LogLine[]} */
  const lines = page.data.map((/** @type {LogLine} */ line) => ({ ...line, text: cleanLines(line.text).join(" ") }));
  return { ...page, data: lines };
}

export class LogSearch {
  /**
   * `changed(lines)` gets new matching lines, `reached(search)` is called after each page.
   *
   * @param {string} jobId
   * @param {LogSelection} selection
   * @param {LogQuery} search
   * @param {{ changed: (lines: LogLine[]) => void, reached: (search: LogSearch) => void, failed: (error: Error) => void }} calls
   */
  constructor(jobId, selection, search, { changed, reached, failed }) {
    this.jobId = jobId;
    this.selection = selection;
    this.search = search;
    this.changed = changed;
    this.reached = reached;
    this.failed = failed;
    this.controller = new AbortController();
    this.count = 0;
    this.lastOffset = -1;
    /** @type {number | undefined} */
    this.next = undefined;
    this.complete = false;
    this.running = false;
  }

  stop() {
    this.controller.abort();
  }

  /** Search on until a page of lines is found, or all is searched. */
  async more() {
    if (this.running) {
      this.again = this.complete;
      return;
    }
    this.running = true;
    try {
      let found = 0;
      do {
        const page = await searchPage(
          this.jobId,
          this.selection,
          this.search,
          { offset: this.next },
          this.controller.signal,
        );
        const lines = page.data.filter((/** @type {LogLine} */ line) => line.offset > this.lastOffset);
        this.lastOffset = lines.at(-1)?.offset ?? this.lastOffset;
        this.next = page.next_offset;
        this.complete = !page.has_more;
        this.count += lines.length;
        found += lines.length;
        this.changed(lines);
        this.reached(this);
      } while (!this.complete && found < PAGE);
    } catch (error) {
      if (!this.controller.signal.aborted) this.failed(error);
    } finally {
      this.running = false;
    }
    if (this.again) {
      this.again = false;
      this.more();
    }
  }
}
