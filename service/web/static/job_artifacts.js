// The artifacts of a job on its page: a tree of files, each shown where it is opened. Nothing is read before the section
// is opened, and a folder's rows are made when it is.

import { urlOf } from "./address.js";
import { callAll } from "./api.js";
import { kindOf, treeOf } from "./artifact_files.js";
import { viewOf } from "./artifact_view.js";
import { bytes, count } from "./format.js";
import { byId, make, onOpen, setText, toastError, within } from "./page.js";

/** @type {Record<string, Direction>} */
const BY_KEY = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" };
const ROWS = 100; // rows of a folder that are added at a time

/**
 * Connect the section of a job's artifacts. `hasEnded()`: whether no more will be written.
 *
 * @param {string} jobId
 * @param {() => boolean} hasEnded
 */
export function connectArtifacts(jobId, hasEnded) {
  const section = byId("artifacts", HTMLDetailsElement);
  const root = `/v1/jobs/${jobId}/artifacts`;
  const load = async () => {
    setText(byId("artifacts-note"), "Reading…");
    const files = await callAll(root);
    const tree = treeOf(files);
    setText(
      byId("artifacts-note"),
      files.length
        ? `${count(tree.count)} file${tree.count === 1 ? "" : "s"}, ${bytes(tree.size)}`
        : hasEnded()
          ? "None were written."
          : "None yet.",
    );
    fillFolder(byId("artifacts-list"), tree, root);
  };
  const read = () =>
    load().catch((error) => {
      setText(byId("artifacts-note"), "");
      toastError(error);
    });
  onOpen(section, read);
  byId("artifacts-reload").addEventListener("click", read);
}

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
  return row(
    `${folder.name}/`,
    `${count(folder.count)} file${folder.count === 1 ? "" : "s"}, ${bytes(folder.size)}`,
    (content) => {
      const list = make("ul", { class: "artifacts" });
      content.append(list);
      fillFolder(list, folder, root);
    },
  );
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
