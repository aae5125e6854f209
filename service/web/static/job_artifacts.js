// The artifacts of a job on its page: a tree of files, each shown where it is opened. Nothing is read before the tab is shown,
// and a folder's rows are made when it is opened.

import { urlOf } from "./address.js";
import { callAll } from "./api.js";
import { kindOf, treeOf } from "./artifact_files.js";
import { viewOf } from "./artifact_view.js";
import { bytes, count } from "./format.js";
import { byId, make, setText, toastError, within } from "./page.js";

/** @type {Record<string, Direction>} */
const BY_KEY = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" };
const ROWS = 100; // rows of a folder that are added at a time

export class JobArtifacts {
  /**
   * `hasEnded()`: whether no more will be written.
   *
   * @param {string} jobId
   * @param {() => boolean} hasEnded
   */
  constructor(jobId, hasEnded) {
    this.root = `/v1/jobs/${jobId}/artifacts`;
    this.hasEnded = hasEnded;
    this.wasRead = false;
    byId("artifacts-reload").addEventListener("click", () => this.read());
  }

  /** Read them when the tab is shown first. */
  open() {
    byId("artifacts").hidden = false;
    if (!this.wasRead) this.read();
    this.wasRead = true;
  }

  async read() {
    const note = byId("artifacts-note");
    setText(note, "Reading…");
    try {
      const files = await callAll(this.root);
      const tree = treeOf(files);
      const none = this.hasEnded() ? "None were written." : "None yet.";
      setText(note, files.length ? summaryOf(tree) : none);
      fillFolder(byId("artifacts-list"), tree, this.root);
    } catch (error) {
      setText(note, "");
      toastError(error);
    }
  }
}

/** @param {{ count: number, size: number }} folder */
const summaryOf = ({ count: files, size }) => `${count(files)} file${files === 1 ? "" : "s"}, ${bytes(size)}`;

/**
 * @param {HTMLElement} list
 * @param {Folder} folder
 * @param {string} root
 */
function fillFolder(list, folder, root) {
  const byName = (/** @type {{ name: string }} */ one, /** @type {{ name: string }} */ other) =>
    one.name.localeCompare(other.name, undefined, { numeric: true });
  const rows = [
    ...[...folder.folders.values()].sort(byName).map((one) => () => folderRow(one, root)),
    ...folder.entries.sort(byName).map((one) => () => fileRow(one, root)),
  ];
  let shown = 0;
  const more = make("button", { type: "button", class: "quiet" });
  const item = make("li", {}, more);
  const add = () => {
    item.remove();
    list.append(...rows.slice(shown, shown + ROWS).map((row) => row()));
    shown = Math.min(rows.length, shown + ROWS);
    setText(more, `${count(rows.length - shown)} more`);
    if (shown < rows.length) list.append(item);
  };
  more.addEventListener("click", () => {
    add();
    list.children[shown - ROWS]?.querySelector("summary")?.focus();
  });
  list.replaceChildren();
  add();
}

/**
 * A row that makes its content when it is opened first.
 *
 * @param {string} name
 * @param {string} detail
 * @param {(content: HTMLElement) => void} open
 */
function row(name, detail, open) {
  const content = make("div", { class: "content" });
  const details = make(
    "details",
    {},
    make("summary", {}, make("span", { class: "mono", text: name }), make("small", { text: detail })),
    content,
  );
  details.addEventListener(
    "toggle",
    () => {
      if (details.open) open(content);
    },
    { once: true },
  );
  return make("li", {}, details);
}

/**
 * @param {Folder} folder
 * @param {string} root
 */
function folderRow(folder, root) {
  return row(`${folder.name}/`, summaryOf(folder), (content) => {
    const list = make("ul", { class: "artifacts" });
    content.append(list);
    fillFolder(list, folder, root);
  });
}

/**
 * @param {{ name: string, path: string, size: number }} entry
 * @param {string} root
 */
function fileRow(entry, root) {
  const isImage = kindOf(entry.path) === "image";
  /** @type {HTMLElement} */
  const item = row(entry.name, bytes(entry.size), async (content) => {
    const url = `${root}/${entry.path.split("/").map(encodeURIComponent).join("/")}`;
    const shown = make("div", { class: "preview" });
    const download = make("a", { class: "button", href: urlOf(url), download: true, text: "Download" });
    content.append(make("p", { class: "toolbar" }, download, ...(isImage ? neighbours(item) : [])), shown);
    try {
      shown.replaceChildren(...(await viewOf(url, entry)));
    } catch (error) {
      shown.replaceChildren(make("p", { class: "hint", text: error.message }));
    }
  });
  if (isImage) connectNeighbours(item);
  return item;
}

/**
 * Buttons that open the image before and after that of a row, as far as there are any.
 *
 * @param {HTMLElement} item
 */
function neighbours(item) {
  const button = (/** @type {string} */ text, /** @type {Direction} */ by) =>
    make("button", { type: "button", text, hidden: !neighbour(item, by), onclick: () => openInstead(item, by) });
  return [button("Previous image", "previousElementSibling"), button("Next image", "nextElementSibling")];
}

/** @param {Element} item */
const detailsOf = (item) => within(item, "details", HTMLDetailsElement);

/** @param {HTMLElement} item */
function connectNeighbours(item) {
  item.classList.add("image");
  item.addEventListener("keydown", (event) => {
    const by = BY_KEY[event.key];
    if (!by || event.target instanceof HTMLInputElement || !detailsOf(item).open) return;
    event.preventDefault();
    openInstead(item, by);
  });
}

/**
 * @param {HTMLElement} item
 * @param {Direction} by
 */
function neighbour(item, by) {
  let other = item[by];
  while (other && !other.matches(".image")) other = other[by];
  return other;
}

/**
 * Open the next image in one direction in place of that of a row.
 *
 * @param {HTMLElement} item
 * @param {Direction} by
 */
function openInstead(item, by) {
  const other = neighbour(item, by);
  if (!other) return;
  detailsOf(item).open = false;
  detailsOf(other).open = true;
  within(other, "summary").focus();
}
