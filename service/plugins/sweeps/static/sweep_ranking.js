// The ranking of a sweep: its state, the members with the best first, which fields matter, and a scatter of any two.

import { urlOf } from "./address.js";
import { query } from "./api.js";
import { apart } from "./chart_axes.js";
import { asNumber, duration, NOTHING, number, specValue, stepText } from "./format.js";
import { shownName } from "./job_rows.js";
import { chipOf, MEMBER_STATES } from "./member_texts.js";
import { byId, data, make, makeSvg, maybeById, setText, within } from "./page.js";
import { hasRatios, scale } from "./parallel_coordinates.js";
import { inParts, onSize } from "./parts.js";
import { place, RowOrder } from "./row_order.js";

const SIDE = 56;
const BY = "rank_by"; // in the address, with the direction
const MODE = "rank_mode";

/**
 * The ranks and values of a sweep's members by a metric; those of the service by its own.
 *
 * @param {Api.SweepDetail} sweep
 * @param {string} metric
 * @param {string} mode
 * @returns {Map<number, { rank: number | null, value: MetricValue }>}
 */
export function ranksOf(sweep, metric, mode) {
  if (metric === sweep.metric && mode === sweep.mode)
    return new Map(sweep.members.map(({ number: n, rank, value }) => [n, { rank, value }]));
  const values = sweep.members.map(({ number: n, metrics }) => ({ n, value: metrics[metric] ?? null }));
  const sign = mode === "max" ? -1 : 1;
  const ordered = values
    .filter(({ value }) => value !== null && !Number.isNaN(asNumber(value)))
    .sort((one, other) => sign * (asNumber(one.value) - asNumber(other.value)) || one.n - other.n)
    .map(({ n }) => n);
  return new Map(values.map(({ n, value }) => [n, { rank: ordered.indexOf(n) + 1 || null, value }]));
}

export class SweepRanking {
  /**
   * @param {Api.SweepDetail} sweep
   * @param {(member: Api.SweepMember) => string} nameOf is the name of a member with its number.
   * @param {(id: string | null) => void} highlight
   */
  constructor(sweep, nameOf, highlight) {
    this.sweep = sweep;
    this.nameOf = nameOf;
    this.highlight = highlight;
    /** @type {Extent | null} */
    this.size = null;
    /** @type {string | null} */
    this.drawn = null;
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    /** @type {string[]} */
    this.fields = [];
    this.order = new RowOrder(() => this.showRows(), "rank");
    const parameters = new URLSearchParams(location.search);
    this.metric = parameters.get(BY) ?? sweep.metric;
    this.mode = ["min", "max"].find((one) => one === parameters.get(MODE)) ?? sweep.mode;
    this.ranks = ranksOf(sweep, this.metric, this.mode);
    const [by, mode] = [byId("rank-by", HTMLSelectElement), byId("rank-mode", HTMLSelectElement)];
    mode.value = this.mode;
    for (const select of [by, mode]) select.addEventListener("change", () => this.rankBy(by.value, mode.value));
    for (const id of ["scatter-x", "scatter-y"]) byId(id).addEventListener("change", () => this.drawScatter());
    onSize(byId("scatter"), (size) => {
      this.size = size;
      this.drawScatter();
    });
    this.show(sweep);
  }

  /** @param {Api.SweepDetail} sweep */
  show(sweep) {
    this.sweep = sweep;
    this.ranks = ranksOf(sweep, this.metric, this.mode);
    this.fillMetrics();
    setText(byId("sweep-state"), this.summary());
    this.showHead();
    this.showRows();
    byId("ranking-empty").hidden = sweep.members.length > 0;
    const longer = maybeById("longer", HTMLAnchorElement);
    if (longer) {
      const best = sweep.members.find((member) => this.rankOf(member) === 1)?.job_id ?? sweep.best;
      longer.hidden = !best;
      longer.href = urlOf(`/submit${query({ from: best, longer: true })}`);
    }
    this.showImportance();
    this.fillScatter();
  }

  /** @param {Api.SweepMember} member */
  rankOf(member) {
    return this.ranks.get(member.number)?.rank ?? null;
  }

  /**
   * Rank the members by another metric or in the other direction; the address has both.
   *
   * @param {string} metric
   * @param {string} mode
   */
  rankBy(metric, mode) {
    Object.assign(this, { metric, mode });
    const address = new URLSearchParams(location.search);
    address.set(BY, metric);
    address.set(MODE, mode);
    history.replaceState(null, "", `${location.pathname}?${address}`);
    this.show(this.sweep);
  }

  /** Offer the metrics of the members, and the one that ranks them. */
  fillMetrics() {
    const select = byId("rank-by", HTMLSelectElement);
    const names = [...new Set([...this.metricNames(), this.metric])];
    if (String(names) !== String(Array.from(select.options, (option) => option.value)))
      select.replaceChildren(
        ...names.map((text) => make("option", { value: text, text: shownName(text, this.sweep.members) })),
      );
    select.value = this.metric;
  }

  metricNames() {
    const { metric, members } = this.sweep;
    const reported = new Set(members.flatMap((member) => Object.keys(member.metrics)));
    return [...new Set([metric, ...[...reported].sort()])];
  }

  /**
   * Mark a run in the table and in the scatter; null: none.
   *
   * @param {string | null} id
   */
  mark(id) {
    for (const one of document.querySelectorAll("#ranking tr, #scatter circle"))
      one.classList.toggle("highlighted", id !== null && one.getAttribute("data-run") === id);
  }

  showHead() {
    const { fields } = this.sweep;
    const table = byId("ranking", HTMLTableElement);
    const [head, body] = [table.createTHead(), table.tBodies[0]];
    if (!head.firstElementChild || String(fields) !== String(this.fields)) {
      this.rows.clear();
      body.replaceChildren();
      /**
       * @param {string} column
       * @param {Child} text
       */
      const cell = (column, text, kind = "", title = "") => this.order.head(column, { class: kind, title }, text);
      head.replaceChildren(
        make(
          "tr",
          {},
          cell("rank", "Rank", "right"),
          cell("number", "Run"),
          cell("value", make("span", { class: "metric" }), "right mono", "The last value of each run"),
          cell("state", "State"),
          ...fields.map((text) => cell(`field ${text}`, text, "mono")),
          cell("step", "Step", "right"),
        ),
      );
      this.fields = fields;
    }
    setText(within(head, ".metric"), this.metricName());
  }

  /**
   * What a column sorts a member by.
   *
   * @param {Api.SweepMember} member
   * @param {string} column
   * @returns {any}
   */
  keyOf(member, column) {
    if (column.startsWith("field ")) return member.values[column.slice(6)];
    return {
      rank: this.rankOf(member),
      number: member.number,
      value: this.ranks.get(member.number)?.value,
      state: chipOf(member).text,
      step: member.progress?.step,
    }[column];
  }

  /** Show the rows in their order, in parts; those of an earlier state are not completed. */
  async showRows() {
    this.showing?.abort();
    /** @type {AbortController | undefined} */
    this.showing = new AbortController();
    const { signal } = this.showing;
    const body = byId("ranking", HTMLTableElement).tBodies[0];
    const ordered = [...this.sweep.members].sort(
      (one, other) => (this.rankOf(one) ?? Infinity) - (this.rankOf(other) ?? Infinity) || one.number - other.number,
    );
    const done = await inParts(
      this.order.sorted(ordered, (member, column) => this.keyOf(member, column)),
      (member, n) => this.showRow(body, member, n),
      signal,
    );
    while (done && body.children.length > ordered.length) body.lastElementChild?.remove();
  }

  /** The name of the metric of the sweep, by which the service ranks. */
  ownName() {
    return shownName(this.sweep.metric, this.sweep.members);
  }

  metricName() {
    return shownName(this.metric, this.sweep.members);
  }

  summary() {
    const { sweep } = this;
    const parts = [
      sweep.search
        ? `${sweep.algorithm}: ${sweep.size} of at most ${sweep.search.max_trials ?? (sweep.algorithm === "grid" ? sweep.size : 30)} trials`
        : `${sweep.size} members`,
    ];
    const count = (/** @type {string} */ state) => sweep.members.filter((member) => member.state === state).length;
    for (const state of ["running", "completed", "stopped_early", "failed"])
      if (count(state)) parts.push(`${count(state)} ${MEMBER_STATES[state] ?? state}`);
    if (sweep.gpu_seconds)
      parts.push(`${duration(sweep.gpu_seconds)} of ${data.accelerator === "cpu" ? "process" : "GPU"} time`);
    const isOwn = this.metric === sweep.metric && this.mode === sweep.mode;
    const rungs = sweep.rung_steps.length && isOwn ? "those that have passed more rungs first, then " : "";
    const ranked = sweep.best
      ? ` Ranked by the last value of ${this.metricName()}: ${rungs}${this.mode === "max" ? "the largest" : "the smallest"} first; of equal values, the earlier run.`
      : "";
    return `${parts.join(", ")}. ${sweep.message}${ranked}`;
  }

  /**
   * Fill the row of a member, and put it in its place; what is as it was is not touched, so that focus and selections stay.
   *
   * @param {HTMLElement} body
   * @param {Api.SweepMember} member
   * @param {number} n
   */
  showRow(body, member, n) {
    const row = this.rows.get(member.number) ?? this.newRow(member);
    this.rows.set(member.number, row);
    this.fillRow(row, member);
    place(body, row, n);
  }

  /** @param {Api.SweepMember} member */
  newRow(member) {
    const row = make(
      "tr",
      { "data-run": member.job_id },
      make("td", { class: "right" }),
      make("td"),
      make("td", { class: "right" }),
      make("td", {}, make("span")),
      ...this.fields.map(() => make("td", { class: "mono" })),
      make("td", { class: "right" }),
    );
    row.addEventListener("pointerenter", () => this.highlight(member.job_id));
    row.addEventListener("pointerleave", () => this.highlight(null));
    return row;
  }

  /**
   * @param {HTMLElement} row
   * @param {Api.SweepMember} member
   */
  fillRow(row, member) {
    const [rank, name, value, last, ...others] = row.children;
    const isBest = this.rankOf(member) === 1;
    row.classList.toggle("best", isBest);
    if (!isBest) setText(rank, String(this.rankOf(member) ?? NOTHING));
    else if (!rank.firstElementChild) rank.replaceChildren(make("span", { class: "chip good", text: "best" }));
    if (member.status && !name.firstElementChild)
      name.replaceChildren(make("a", { href: urlOf(`/jobs/${member.job_id}`) }));
    setText(name.firstElementChild ?? name, this.nameOf(member));
    const { text: state, tone } = chipOf(member);
    const chip = within(last, "span");
    chip.className = `chip ${tone}`;
    setText(chip, state);
    chip.title = member.status_message ?? "";
    setText(value, number(this.ranks.get(member.number)?.value));
    const texts = [
      ...this.fields.map((field) => specValue(member.values[field] ?? null)),
      member.progress ? stepText(member.progress, "/") : NOTHING,
    ];
    texts.forEach((text, n) => setText(others[n], text));
  }

  showImportance() {
    const shares = Object.entries(this.sweep.importance).sort(([, one], [, other]) => other - one);
    byId("importance").hidden = !shares.length;
    within(byId("importance"), "ul").replaceChildren(
      ...shares.map(([field, share]) =>
        make(
          "li",
          {},
          make("span", { class: "mono", text: field }),
          make("meter", { min: 0, max: 1, value: share, "aria-label": `Importance of ${field}` }),
          make("span", { text: `${Math.round(share * 100)} %` }),
        ),
      ),
    );
  }

  // -- the scatter of two quantities -------------------------------------------------------------------------------------

  fillScatter() {
    const { fields, metric, members } = this.sweep;
    const metrics = new Set(members.flatMap((member) => Object.keys(member.metrics)));
    const names = [...new Set([...fields, metric, ...[...metrics].sort()])];
    [
      ["scatter-x", names[0]],
      ["scatter-y", metric],
    ].forEach(([id, chosen]) => {
      const select = byId(id, HTMLSelectElement);
      if (String(names) === String(Array.from(select.options, (option) => option.value))) return;
      const before = select.value;
      select.replaceChildren(
        ...names.map((text) => make("option", { value: text, text: text === metric ? this.ownName() : text })),
      );
      select.value = names.includes(before) ? before : chosen;
    });
    this.drawScatter();
  }

  drawScatter() {
    const root = byId("scatter");
    const names = ["scatter-x", "scatter-y"].map((id) => byId(id, HTMLSelectElement).value);
    const value = (/** @type {Api.SweepMember} */ member, /** @type {string} */ name) =>
      asNumber(name === this.sweep.metric ? member.value : (member.values[name] ?? member.metrics[name] ?? null));
    const points = this.sweep.members
      .map((member) => ({ member, at: names.map((name) => value(member, name)) }))
      .filter(({ at }) => at.every((one) => one !== null && !Number.isNaN(one)));
    const drawn = JSON.stringify([
      names,
      this.ownName(),
      this.size,
      points.map(({ member, at }) => [member.number, this.rankOf(member), member.state, at]),
    ]);
    if (!this.size || drawn === this.drawn) return;
    this.drawn = drawn;
    const [width, height] = this.size;
    if (!width || !points.length) {
      root.replaceChildren(make("p", { class: "hint", text: "No member has both values yet." }));
      return;
    }
    const [x, y] = names.map((name, n) =>
      scale(
        points.map((point) => point.at[n]),
        this.logarithmic(name),
      ),
    );
    const titles = [x, y].map(
      ({ isLogarithmic }, n) =>
        `${names[n] === this.sweep.metric ? this.ownName() : names[n]}${isLogarithmic ? " (log)" : ""}`,
    );
    const left = (/** @type {number} */ position) => SIDE + position * (width - SIDE - 24);
    const top = (/** @type {number} */ position) => 24 + (1 - position) * (height - 68);
    /**
     * @param {string} content
     * @param {Record<string, string | number>} attributes
     */
    const text = (content, attributes) => makeSvg("text", attributes, content);
    const dots = points.map(({ member, at }) =>
      makeSvg(
        "circle",
        {
          cx: left(x.position(at[0])),
          cy: top(y.position(at[1])),
          r: this.rankOf(member) === 1 ? 6 : 4,
          "data-run": member.job_id ?? "",
          class: this.rankOf(member) === 1 ? "dot best" : member.state === "stopped_early" ? "dot early" : "dot",
        },
        makeSvg(
          "title",
          {},
          `${this.nameOf(member)}: ${names[0]} ${specValue(at[0])}, ${names[1]} ${specValue(at[1])}`,
        ),
      ),
    );
    for (const dot of dots) {
      dot.addEventListener("pointerenter", () => this.highlight(dot.getAttribute("data-run")));
      dot.addEventListener("pointerleave", () => this.highlight(null));
    }
    root.replaceChildren(
      makeSvg(
        "svg",
        {
          viewBox: `0 0 ${width} ${height}`,
          role: "img",
          "aria-label": `${points.length} members by ${names[0]} and ${names[1]}`,
        },
        makeSvg("path", { class: "frame", d: `M${left(0)} ${top(1)}V${top(0)}H${left(1)}` }),
        ...apart(x.ticks, width - SIDE - 24, 64).map(([position, label]) =>
          text(label, { x: left(position), y: top(0) + 18, "text-anchor": "middle" }),
        ),
        ...apart(y.ticks, height - 68, 14).map(([position, label]) =>
          text(label, { x: left(0) - 8, y: top(position) + 4, "text-anchor": "end" }),
        ),
        text(titles[0], { x: left(1), y: height - 6, "text-anchor": "end", class: "title" }),
        text(titles[1], { x: 4, y: 12, class: "title" }),
        ...dots,
      ),
    );
  }

  /**
   * Whether a quantity has a logarithmic axis; null leaves it to the values.
   *
   * @param {string} name
   */
  logarithmic(name) {
    if (!this.sweep.fields.includes(name)) return hasRatios(name) ? null : false;
    const range = this.sweep.search?.space[name];
    return range && "log" in range ? range.log : null;
  }
}
