// The log of one rank: a moving part of it from the API, the lines of the stream, and searches by the service.

import { urlOf } from "./address.js";
import { call, query, request } from "./api.js";
import { continuedLines, linesOf, timeIn } from "./log_lines.js";
import { LogSearch, searchPage, wanted } from "./log_search.js";
import { LogWindow } from "./log_window.js";
import { TERMINAL } from "./job_status.js";
import { byId, make, setText, toast, toastError } from "./page.js";

const FIRST_LINES = 1000;
const MORE_LINES = 500;
const BYTES = 128 * 1024;
const BEFORE_BYTES = 16 * 1024; // read before a line that a link names
const TYPING = 250; // milliseconds
const REPEAT = 1000; // milliseconds between searches of new lines

export class LogView {
  /**
   * `changed()` is called when another rank is selected, since the stream sends the log of one rank.
   *
   * @param {Job} job
   * @param {() => void} changed
   */
  constructor(job, changed) {
    this.job = job;
    this.box = byId("log");
    this.ranks = byId("rank", HTMLSelectElement);
    this.attempts = byId("log-attempt", HTMLSelectElement);
    this.pattern = byId("log-search", HTMLInputElement);
    this.level = byId("log-level", HTMLSelectElement);
    this.following = byId("follow", HTMLInputElement);
    /** @type {number | null} */
    this.attempt = null;
    this.newest = job.attempt?.number ?? null;
    this.end = 0; // offset behind what is shown
    this.isAtEnd = false;
    this.scrolling = false;
    /** @type {number | undefined} */
    this.typing = undefined;
    /** @type {number | undefined} */
    this.repeat = undefined;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.window = new LogWindow(this.box, {
      link: (offset) => this.address(offset),
      near: (edge) => this.extend(edge),
      open: (offset) => this.openLine(offset),
    });
    this.readAddress();
    this.ranks.addEventListener("change", () => {
      this.load();
      this.storeAddress(null);
      changed();
    });
    this.attempts.addEventListener("change", () => {
      this.attempt = Number(this.attempts.value);
      this.load();
      this.storeAddress(null);
    });
    this.pattern.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.startSearch(), TYPING);
    });
    this.level.addEventListener("change", () => this.startSearch());
    byId("log-error").addEventListener("click", () => this.showPreviousError());
    byId("log-goto").addEventListener("submit", (event) => {
      event.preventDefault();
      this.goTo(byId("log-place", HTMLInputElement).value);
    });
    this.following.addEventListener("change", () => {
      if (this.following.checked) this.follow();
    });
    this.box.addEventListener("scroll", () => {
      if (!this.scrolling) this.following.checked = this.isAtEnd && this.window.isScrolledToEnd && !this.search;
      this.scrolling = false;
    });
  }

  get rank() {
    return this.ranks.value;
  }
  get shownAttempt() {
    return this.attempt ?? this.newest;
  }
  get selection() {
    return { rank: this.rank, attempt: this.shownAttempt };
  }

  /**
   * Set the numbers of the attempts. The newest one is shown until the user selects another.
   *
   * @param {number[]} numbers
   */
  setAttempts(numbers) {
    const select = this.attempts;
    if (select.options.length !== numbers.length) {
      select.replaceChildren(...numbers.map((number) => make("option", { value: number, text: `attempt ${number}` })));
      byId("log-attempt-label").hidden = numbers.length < 2;
    }
    const newest = numbers.at(-1) ?? null;
    if (newest !== this.newest) {
      const wasNewest = this.attempt === null;
      this.newest = newest;
      if (wasNewest) this.load();
    }
    select.value = String(this.shownAttempt);
  }

  // -- the address -----------------------------------------------------------------------------------------------------

  readAddress() {
    const parameters = new URLSearchParams(location.search);
    const rank = parameters.get("rank");
    if (rank !== null && [...this.ranks.options].some((option) => option.value === rank)) this.ranks.value = rank;
    this.attempt = Number(parameters.get("attempt")) || null;
    /** @type {number | null} */
    this.line = parameters.has("line") ? Number(parameters.get("line")) || 0 : null;
    this.pattern.value = parameters.get("grep") ?? "";
    this.level.value = parameters.get("level") ?? "";
  }

  /** @param {number | null} line */
  address(line, searched = false) {
    const parameters = new URLSearchParams(location.search);
    const values = {
      rank: this.rank === "0" ? null : this.rank,
      attempt: this.attempt ?? (line === null ? null : this.shownAttempt),
      line,
      grep: searched ? this.pattern.value : null,
      level: searched ? this.level.value : null,
    };
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === "") parameters.delete(name);
      else parameters.set(name, String(value));
    }
    const text = parameters.toString();
    return `${location.pathname}${text ? `?${text}` : ""}`;
  }

  /** @param {number | null} line */
  storeAddress(line) {
    history.replaceState(null, "", this.address(line, Boolean(this.search)));
  }

  // -- reading ---------------------------------------------------------------------------------------------------------

  /** Show what the address asks for at first, and the end of the log afterwards. */
  async load() {
    const file = byId("log-file", HTMLAnchorElement);
    file.href = urlOf(`/v1/jobs/${this.job.id}/logs${query(this.selection)}`);
    file.download = `${this.job.id}-rank-${this.rank}.log`;
    const { line } = this;
    this.line = null;
    if (line !== null) {
      await this.openLine(line, { scroll: true });
      return;
    }
    if (this.pattern.value || this.level.value) {
      this.startSearch();
      return;
    }
    await this.loadEnd();
  }

  /** Show the end of the log. */
  async loadEnd() {
    this.endSearch();
    /** @type {LogEntry[] | null | undefined} */
    this.pending = [];
    const shown = await this.read({ tail: FIRST_LINES });
    if (!shown) return;
    this.window.show(shown.lines);
    this.hasOlder = shown.offset > 0 && shown.lines.length > 0;
    this.end = shown.end;
    this.isAtEnd = true;
    const { pending } = this;
    this.pending = null;
    for (const entry of pending ?? []) this.append(entry);
    this.finish();
  }

  /**
   * Bytes of the log as lines; null if another log was selected meanwhile, or if the service refused.
   *
   * @param {QueryParameters} range
   */
  async read(range) {
    const { selection } = this;
    try {
      const response = await request(`/v1/jobs/${this.job.id}/logs${query({ ...selection, ...range })}`);
      const bytes = new Uint8Array(await response.arrayBuffer());
      if (selection.rank !== this.rank || selection.attempt !== this.shownAttempt) return null;
      const offset = Number(response.headers.get("X-Trainyard-Offset"));
      return {
        offset,
        end: Number(response.headers.get("X-Trainyard-Next-Offset")),
        lines: linesOf(bytes, offset),
        size: bytes.length,
      };
    } catch (error) {
      this.pending = null;
      if (!this.window.lines.length) this.showText(`(${error.message})`);
      return null;
    }
  }

  /**
   * Read more lines at an edge of what is shown.
   *
   * @param {Edge} edge
   */
  async extend(edge) {
    if (this.extending || this.pending) return;
    if (this.search) {
      if (edge === "bottom" && !this.search.complete) this.search.more();
      return;
    }
    if (edge === "top" ? !this.hasOlder || this.window.first === null : this.isAtEnd) return;
    this.extending = true;
    try {
      const shown = await this.read(
        edge === "top" ? { before: this.window.first, tail: MORE_LINES } : { offset: this.end, limit: BYTES },
      );
      if (!shown || this.search) return;
      if (edge === "top") {
        this.hasOlder = shown.lines.length > 0 && shown.offset > 0;
        this.window.prepend(shown.lines);
        if (this.window.trim("bottom")) this.setEndAfterTrim();
      } else {
        this.joinAtEnd(shown);
      }
    } finally {
      this.extending = false;
    }
  }

  /**
   * Append what was read behind the last line; a page of bytes may end within a line.
   *
   * @param {{ offset: number, end: number, lines: LogLine[], size: number }} part
   */
  joinAtEnd({ offset, end, lines, size }) {
    const { last } = this.window;
    if (last && !last.raw.endsWith("\n") && lines.length) {
      const joined = continuedLines(last, offset, lines[0].raw);
      this.window.removeLast();
      lines.splice(0, 1, ...joined.lines);
    }
    this.window.append(lines);
    this.end = end;
    this.isAtEnd = size < BYTES;
    if (this.window.trim("top")) this.hasOlder = true;
  }

  setEndAfterTrim() {
    // The last line is read again with what follows.
    this.end = this.window.last?.offset ?? 0;
    this.window.removeLast();
    this.isAtEnd = false;
    this.following.checked = false;
  }

  /**
   * Show the log around a byte, and mark its line.
   *
   * @param {number} offset
   */
  async openLine(offset, { scroll = false } = {}) {
    this.endSearch();
    this.following.checked = false;
    const start = Math.max(0, offset - BEFORE_BYTES);
    const shown = await this.read({ offset: start, limit: BYTES });
    if (!shown) return;
    const { lines } = shown;
    // The first line may be cut; one that is longer than what was read before it stays.
    if (shown.offset > 0 && lines.length > 1 && lines[1].offset <= offset) lines.shift();
    this.hasOlder = (lines[0]?.offset ?? 0) > 0;
    this.end = shown.end;
    this.isAtEnd = shown.size < BYTES;
    this.scrolling = true;
    this.window.show(lines);
    this.window.mark(offset);
    this.storeAddress(this.window.marked);
    if (!lines.length) this.showText("No output here.");
    if (scroll) this.box.scrollIntoView({ block: "center" });
  }

  // -- live lines ------------------------------------------------------------------------------------------------------

  /**
   * Add a `log` event of the stream.
   *
   * @param {LogEntry} entry
   */
  add(entry) {
    if (entry.rank !== this.rank || entry.attempt !== this.shownAttempt) return;
    if (this.pending) {
      this.pending.push(entry);
      return;
    }
    if (this.search) {
      if (this.search.complete)
        this.repeat ??= setTimeout(() => {
          this.repeat = undefined;
          this.search?.more();
        }, REPEAT);
      return;
    }
    if (!this.isAtEnd) return;
    this.append(entry);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.finish();
    }, 200);
  }

  /** @param {LogEntry} entry */
  append({ offset, text }) {
    if (offset < this.end || !text) return; // the response of the API includes it
    const { replaces, lines } = continuedLines(this.window.last, offset, text);
    if (!this.window.lines.length) this.window.clear();
    if (replaces) this.window.removeLast();
    this.window.append(lines);
    this.end = Math.max(offset + 1, lines.at(-1).offset + new TextEncoder().encode(lines.at(-1).raw).length);
  }

  /** After lines were appended at the end: follow them, and keep the document small. */
  finish() {
    if (!this.window.lines.length) {
      this.showText(TERMINAL.has(this.job.status) ? "No output." : "No output yet.");
      return;
    }
    if (this.following.checked && !this.search) {
      if (this.window.trim("top")) this.hasOlder = true;
      this.scrollToEnd();
    } else if (this.window.trim("bottom")) {
      this.setEndAfterTrim();
    }
  }

  /** The log is in view again, or has another size. */
  shown() {
    if (this.window.marked !== null) this.window.mark(this.window.marked);
    else if (this.following.checked && !this.search) this.scrollToEnd();
  }

  follow() {
    this.pattern.value = "";
    this.level.value = "";
    if (this.search || !this.isAtEnd) this.loadEnd();
    else {
      this.window.unmark();
      this.scrollToEnd();
    }
    this.storeAddress(null);
  }

  scrollToEnd() {
    this.scrolling = !this.window.isScrolledToEnd;
    this.window.scrollToEnd();
  }

  /** @param {string} text */
  showText(text) {
    this.window.clear();
    setText(this.box, text);
  }

  // -- search and jumps ------------------------------------------------------------------------------------------------

  startSearch() {
    const search = wanted(this.pattern.value.trim(), this.level.value);
    if (!search.text && !search.level) {
      this.following.checked = true;
      this.loadEnd().then(() => this.storeAddress(null));
      return;
    }
    this.endSearch();
    this.following.checked = false;
    setText(byId("log-matches"), "searching…");
    let empty = true;
    /** @type {LogSearch | null | undefined} */
    this.search = new LogSearch(this.job.id, this.selection, search, {
      changed: (lines) => {
        if (empty) this.window.clear();
        this.window.append(lines, { focusable: true });
        empty = !this.window.lines.length;
        if (empty) this.showText("No matching lines.");
      },
      reached: ({ count, complete }) =>
        setText(byId("log-matches"), `${count}${complete ? "" : "+"} matching line${count === 1 ? "" : "s"}`),
      failed: (error) => {
        setText(byId("log-matches"), "");
        this.showText(`(${error.message})`);
      },
    });
    this.storeAddress(null);
    return this.search.more();
  }

  endSearch() {
    this.search?.stop();
    this.search = null;
    setText(byId("log-matches"), "");
  }

  /** Show the error before the marked line, or the last one. */
  async showPreviousError() {
    try {
      const found = await searchPage(
        this.job.id,
        this.selection,
        { level: "error" },
        { order: "desc", limit: 1, offset: this.window.marked },
      );
      if (found.data.length) await this.openLine(found.data[0].offset);
      else toast(this.window.marked === null ? "No line reports an error." : "No earlier line reports an error.");
    } catch (error) {
      toastError(error);
    }
  }

  /**
   * Show the log at a step, or at a time in the user's time zone.
   *
   * @param {string} place
   */
  async goTo(place) {
    const step = /^\s*(?:step\s*)?(\d[\d\s\u202f]*)$/i.exec(place);
    const time = step ? null : timeIn(place, new Date(this.job.finished_at ?? Date.now()));
    if (!step && !time) {
      toast("Enter a step such as 400, or a time such as 14:05.", { bad: true });
      return;
    }
    const wantedPlace = { step: step?.[1].replace(/\D/g, ""), time: time?.toISOString() };
    try {
      // The newest attempt that did a step is found by the service.
      const attempt = step && this.attempt === null ? undefined : this.shownAttempt;
      const position = await call(
        `/v1/jobs/${this.job.id}/logs/position${query({ rank: this.rank, attempt, ...wantedPlace })}`,
      );
      if (position.attempt !== this.shownAttempt) {
        this.attempt = position.attempt;
        this.attempts.value = String(position.attempt);
      }
      await this.openLine(position.offset);
    } catch (error) {
      toastError(error);
    }
  }
}
