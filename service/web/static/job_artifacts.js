// The artifacts of a job on its page: a tree of files, each shown where it is opened. Nothing is read before the section
// is opened, and a folder's rows are made when it is.

import { urlOf } from "./address.js";
import { callAll } from "./api.js";
import { kindOf, treeOf } from "./artifact_files.js";
import { viewOf } from "./artifact_view.js";
import { bytes, count } from "./format.js";
import { byId, make, onOpen, setText, toastError } from "./page.js";

const ROWS = 100; // rows of a folder that are added at a time

/** Connect the section of a job's artifacts. `hasEnded()`: whether no more will be written. */
export function connectArtifacts(jobId, hasEnded) {
  const section = byId("artifacts");
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

function fillFolder(list, folder, root) {
  const byName = (one, other) => one.name.localeCompare(other.name, undefined, { numeric: true });
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

/** A row that makes its content when it is opened first. */
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

function fileRow(entry, root) {
  const isImage = kindOf(entry.path) === "image";
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

/** Buttons that open the image before and after that of a row, as far as there are any. */
function neighbours(item) {
  const button = (text, by) =>
    make("button", { type: "button", text, hidden: !neighbour(item, by), onclick: () => openInstead(item, by) });
  return [button("Previous image", "previousElementSibling"), button("Next image", "nextElementSibling")];
}

function connectNeighbours(item) {
  item.classList.add("image");
  item.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    if (!by || event.target.matches("input") || !item.firstElementChild.open) return;
    event.preventDefault();
    openInstead(item, by);
  });
}

function neighbour(item, by) {
  let other = item[by];
  while (other && !other.matches(".image")) other = other[by];
  return other;
}

/** Open the next image in one direction in place of that of a row. */
function openInstead(item, by) {
  const other = neighbour(item, by)?.firstElementChild;
  if (!other) return;
  item.firstElementChild.open = false;
  other.open = true;
  other.querySelector("summary").focus();
}
