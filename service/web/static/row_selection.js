// Which rows of the table are selected: by the box of a row, of a group or of all; with Shift, all from the last one on.
// The arrow keys lead from the box of a row to that of the next one.

export class RowSelection {
  /**
   * `all` is the box in the head. `rows()` has the ids of all rows in their order, `jobsOf(id)` those of the jobs of a row, and
   * `isOpen(id)` tells whether the jobs of a group have rows of their own. `select(ids, isSelected)` is called with jobs.
   */
  constructor(body, all, { rows, jobsOf, isOpen, select }) {
    Object.assign(this, { all, rows, jobsOf, isOpen, select, last: null });
    body.addEventListener("mousedown", (event) => {
      if (event.shiftKey && isBox(event.target)) event.preventDefault();
    }); // no text is selected
    body.addEventListener("click", ({ target, shiftKey }) => {
      if (isBox(target)) this.choose(target.closest("tr").dataset.id, target.checked, shiftKey);
    });
    body.addEventListener("keydown", (event) => {
      if (isBox(event.target) && event.key in BY_KEY) {
        event.preventDefault();
        focusBox(event.target, BY_KEY[event.key]);
      }
    });
    all.addEventListener("click", () => select(this.rows().flatMap(jobsOf), all.checked));
  }

  choose(id, isSelected, isRange) {
    const ids = this.rows();
    const [from, to] = [ids.indexOf(this.last), ids.indexOf(id)].sort((one, other) => one - other);
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

  /** Show in the head how many of the jobs of the table are selected. */
  show(chosen, size) {
    this.all.checked = size > 0 && chosen === size;
    this.all.indeterminate = chosen > 0 && chosen < size;
    this.all.title = `Select all ${size} jobs of the table`;
  }
}

const BY_KEY = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
const focusBox = (box, sibling) => box.closest("tr")[sibling]?.querySelector("input")?.focus();
const isBox = (element) => element.matches("input[type=checkbox]");
