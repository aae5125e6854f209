// Which rows of the table are selected: by the box of a row, of a group or of all; with Shift, all from the last one on.
// The arrow keys lead from the box of a row to that of the next one.

export class RowSelection {
  /**
   * `all` is the box in the head. `rows()` has the ids of all rows in their order, `jobsOf(id)` those of the jobs of a row, and
   * `isOpen(id)` tells whether the jobs of a group have rows of their own. `select(ids, isSelected)` is called with jobs.
   *
   * @param {HTMLElement} body
   * @param {HTMLInputElement} all
   * @param {SelectionCalls} calls
   */
  constructor(body, all, { rows, jobsOf, isOpen, select }) {
    this.all = all;
    this.rows = rows;
    this.jobsOf = jobsOf;
    this.isOpen = isOpen;
    this.select = select;
    /** @type {string | null} */
    this.last = null;
    body.addEventListener("mousedown", (event) => {
      if (event.shiftKey && boxOf(event)) event.preventDefault();
    }); // no text is selected
    body.addEventListener("click", (event) => {
      const box = boxOf(event);
      const id = box?.closest("tr")?.dataset.id;
      if (box && id !== undefined) this.choose(id, box.checked, event.shiftKey);
    });
    body.addEventListener("keydown", (event) => {
      const [box, sibling] = [boxOf(event), BY_KEY[event.key]];
      if (!box || !sibling) return;
      event.preventDefault();
      focusBox(box, sibling);
    });
    all.addEventListener("click", () => select(this.rows().flatMap(jobsOf), all.checked));
  }

  /**
   * @param {string} id
   * @param {boolean} isSelected
   * @param {boolean} isRange
   */
  choose(id, isSelected, isRange) {
    const ids = this.rows();
    const [from, to] = [ids.indexOf(this.last ?? ""), ids.indexOf(id)].sort((one, other) => one - other);
    this.last = id;
    if (isRange && from >= 0 && from < to)
      this.select(
        ids
          .slice(from, to + 1)
          .filter((one) => !this.isOpen(one))
          .flatMap(this.jobsOf),
        isSelected,
      );
    else this.select(this.jobsOf(id), isSelected);
  }

  /**
   * Show in the head how many of the jobs of the table are selected.
   *
   * @param {number} chosen
   * @param {number} size
   */
  show(chosen, size) {
    this.all.checked = size > 0 && chosen === size;
    this.all.indeterminate = chosen > 0 && chosen < size;
    this.all.title = `Select all ${size} jobs of the table`;
  }
}

/** @type {Record<string, Direction | undefined>} */
const BY_KEY = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
/**
 * @param {HTMLElement} box
 * @param {Direction} sibling
 */
const focusBox = (box, sibling) => box.closest("tr")?.[sibling]?.querySelector("input")?.focus();
/** @param {Event} event */
const boxOf = ({ target }) => (target instanceof HTMLInputElement && target.type === "checkbox" ? target : null);
