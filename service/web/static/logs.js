// One rank's log: its last lines from the API, then what the stream brings; only lines with a text, if one is sought.

import { ask, query } from "./api.js";
import { byId, make, setText } from "./page.js";

const LINES = 4000;
// What terminals take for colours and cursor moves.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

export class LogView {
  /** `changed()` is called when another rank is wanted, so that the stream can be asked for it. */
  constructor(job, changed) {
    this.job = job;
    this.box = byId("log");
    this.lines = [""];
    this.attempt = null;
    this.newest = job.attempt?.number ?? null;
    this.from = 0;
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

  /** The attempts there are; the newest is followed until another is chosen. */
  setAttempts(numbers) {
    const select = byId("log-attempt");
    if (select.options.length !== numbers.length) {
      select.replaceChildren(...numbers.map((number) => make("option", { value: number, text: `attempt ${number}` })));
      byId("attempt-of-log").hidden = numbers.length < 2;
    }
    const newest = numbers.at(-1) ?? null;
    if (newest !== this.newest) {
      this.newest = newest;
      if (this.attempt === null || this.attempt !== newest) { this.attempt = null; this.load(); }
    }
    select.value = String(this.shown);
  }

  get shown() {
    return this.attempt ?? this.newest;
  }

  async load() {
    const wanted = { rank: this.rank, attempt: this.shown };
    byId("log-file").href = `/v1/jobs/${this.job.id}/logs${query(wanted)}`;
    byId("log-file").download = `${this.job.id}-rank-${this.rank}.log`;
    this.pending = [];
    try {
      const answer = await ask(`/v1/jobs/${this.job.id}/logs${query({ ...wanted, tail: LINES })}`);
      const text = await answer.text();
      if (wanted.rank !== this.rank || wanted.attempt !== this.shown) return;
      this.from = Number(answer.headers.get("X-Trainyard-Next-Offset"));
      this.lines = clean(text).split("\n");
    } catch (error) {
      this.lines = [`(${error.message})`, ""];
      this.from = 0;
    }
    const waiting = this.pending;
    this.pending = null;
    for (const told of waiting) this.take(told);
    this.draw();
  }

  /** A `log` event of the stream. */
  add(told) {
    if (told.rank !== this.rank || told.attempt !== this.shown) return;
    if (this.pending) this.pending.push(told);
    else { this.take(told); this.drawSoon(); }
  }

  take({ offset, text }) {
    if (offset < this.from) return; // it is in what was read
    this.from = offset + 1;
    const parts = clean(text).split("\n");
    this.lines[this.lines.length - 1] += parts.shift();
    this.lines.push(...parts);
    if (this.lines.length > LINES * 2) this.lines.splice(0, this.lines.length - LINES);
  }

  drawSoon() {
    this.later ??= setTimeout(() => { this.later = undefined; this.draw(); }, 200);
  }

  draw() {
    const sought = byId("log-search").value.toLowerCase();
    const found = sought ? this.lines.filter((line) => line.toLowerCase().includes(sought)) : this.lines;
    setText(byId("log-found"), sought ? `${found.length} of ${this.lines.length} lines` : "");
    const text = found.slice(-LINES).join("\n");
    setText(this.box, text.trim() ? text : sought ? "No matching lines." : "No output yet.");
    this.scroll();
  }

  scroll() {
    if (!byId("follow").checked) return;
    this.scrolling = this.box.scrollTop + this.box.clientHeight < this.box.scrollHeight - 1;
    this.box.scrollTop = this.box.scrollHeight;
  }
}

/** Without what only a terminal understands; a line that was written over is what was written last. */
const clean = (text) => text.replace(/\r\n/g, "\n").replace(/[^\n]*\r(?=[^\n])/g, "").replace(ESCAPES, "");
