// The log of one rank: its last lines from the API, then the lines of the stream; a search shows matching lines only.

import { query, request } from "./api.js";
import { byId, make, setText } from "./page.js";

const MAX_LINES = 4000;
const MAX_LINE_LENGTH = 4000;
const CUT = ` … [line cut after ${MAX_LINE_LENGTH} characters; download the log for the rest]`;
// Escape sequences of terminals, for colours and cursor moves, and control characters.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

export class LogView {
  /** `changed()` is called when another rank is selected, since the stream sends the log of one rank. */
  constructor(job, changed) {
    this.job = job;
    this.box = byId("log");
    this.lines = [""];
    this.attempt = null;
    this.newest = job.attempt?.number ?? null;
    this.nextOffset = 0;
    byId("rank").addEventListener("change", () => { this.load(); changed(); });
    byId("log-attempt").addEventListener("change", () => { this.attempt = Number(byId("log-attempt").value); this.load(); });
    byId("log-search").addEventListener("input", () => this.draw());
    byId("follow").addEventListener("change", () => this.scroll());
    this.box.addEventListener("scroll", () => {
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      if (!this.scrolling) byId("follow").checked = atEnd;
      this.scrolling = false;
    });
  }

  get rank() {
    return byId("rank").value;
  }

  /** Set the numbers of the attempts. The newest one is shown until the user selects another. */
  setAttempts(numbers) {
    const select = byId("log-attempt");
    if (select.options.length !== numbers.length) {
      select.replaceChildren(...numbers.map((number) => make("option", { value: number, text: `attempt ${number}` })));
      byId("log-attempt-label").hidden = numbers.length < 2;
    }
    const newest = numbers.at(-1) ?? null;
    if (newest !== this.newest) {
      this.newest = newest;
      if (this.attempt === null || this.attempt !== newest) { this.attempt = null; this.load(); }
    }
    select.value = String(this.shownAttempt);
  }

  get shownAttempt() {
    return this.attempt ?? this.newest;
  }

  async load() {
    const selection = { rank: this.rank, attempt: this.shownAttempt };
    byId("log-file").href = `/v1/jobs/${this.job.id}/logs${query(selection)}`;
    byId("log-file").download = `${this.job.id}-rank-${this.rank}.log`;
    this.pending = [];
    try {
      const response = await request(`/v1/jobs/${this.job.id}/logs${query({ ...selection, tail: MAX_LINES })}`);
      const text = await response.text();
      if (selection.rank !== this.rank || selection.attempt !== this.shownAttempt) return;
      this.nextOffset = Number(response.headers.get("X-Trainyard-Next-Offset"));
      this.lines = cleanLines(text);
    } catch (error) {
      this.lines = [`(${error.message})`, ""];
      this.nextOffset = 0;
    }
    const { pending } = this;
    this.pending = null;
    for (const entry of pending) this.append(entry);
    this.draw();
  }

  /** Add a `log` event of the stream. */
  add(entry) {
    if (entry.rank !== this.rank || entry.attempt !== this.shownAttempt) return;
    if (this.pending) this.pending.push(entry);
    else { this.append(entry); this.scheduleDraw(); }
  }

  append({ offset, text }) {
    if (offset < this.nextOffset) return; // the response of the API includes it
    this.nextOffset = offset + 1;
    this.lines.push(...cleanLines(this.lines.pop() + text));
    if (this.lines.length > MAX_LINES * 2) this.lines.splice(0, this.lines.length - MAX_LINES);
  }

  scheduleDraw() {
    this.timer ??= setTimeout(() => { this.timer = undefined; this.draw(); }, 200);
  }

  draw() {
    const search = byId("log-search").value.toLowerCase();
    const matches = search ? this.lines.filter((line) => line.toLowerCase().includes(search)) : this.lines;
    setText(byId("log-matches"), search ? `${matches.length} of ${this.lines.length} lines` : "");
    const text = matches.slice(-MAX_LINES).join("\n");
    setText(this.box, text.trim() ? text : search ? "No matching lines." : "No output yet.");
    this.scroll();
  }

  scroll() {
    if (!byId("follow").checked) return;
    this.scrolling = this.box.scrollTop + this.box.clientHeight < this.box.scrollHeight - 1;
    this.box.scrollTop = this.box.scrollHeight;
  }
}

/** The lines of a text without escape sequences; of an overwritten line, what was written last; long lines cut. */
export const cleanLines = (text) => text.replaceAll("\r\n", "\n").split("\n").map((line) => cut(lastWritten(line).replace(ESCAPES, "")));

const lastWritten = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1);

const cut = (line) => (line.length > MAX_LINE_LENGTH ? line.slice(0, MAX_LINE_LENGTH) + CUT : line);
