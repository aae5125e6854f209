// The artifacts of a job on its page: a tree of files, each shown where it is opened. Nothing is read before the section
// is opened, and a folder's rows are made when it is.

import { callAll } from "./api.js";
import { kindOf, treeOf } from "./artifact_files.js";
import { viewOf } from "./artifact_view.js";
import { bytes, count } from "./format.js";
import { byId, make, setText, toastError } from "./page.js";

const ROWS = 100; // rows of a folder that are added at a time

/** Connect the section of a job's artifacts. `hasEnded()`: whether no more will be written. */
export function connectArtifacts(jobId, hasEnded) {
  const section = byId("artifacts");
  const root = `/v1/jobs/${jobId}/artifacts`;
  const load = async () => {
    setText(byId("artifacts-note"), "Reading…");
    const files = await callAll(root);
    const tree = treeOf(files);
    setText(byId("artifacts-note"), files.length ? `${count(tree.count)} file${tree.count === 1 ? "" : "s"}, ${bytes(tree.size)}` : hasEnded() ? "None were written." : "None yet.");
    fillFolder(byId("artifacts-list"), tree, root);
  };
  const read = () => load().catch((error) => { setText(byId("artifacts-note"), ""); toastError(error); });
  section.addEventListener("toggle", () => { if (section.open) read(); });
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
  more.addEventListener("click", () => { add(); list.children[shown - ROWS]?.querySelector("summary")?.focus(); });
  list.replaceChildren();
  add();
}

/** A row that makes its content when it is opened first. */
function row(name, detail, open) {
  const content = make("div", { class: "content" });
  const details = make("details", {}, make("summary", {}, make("span", { class: "mono", text: name }), make("small", { text: detail })), content);
  details.addEventListener("toggle", () => { if (details.open) open(content); }, { once: true });
  return make("li", {}, details);
}

function folderRow(folder, root) {
  return row(`${folder.name}/`, `${count(folder.count)} file${folder.count === 1 ? "" : "s"}, ${bytes(folder.size)}`, (content) => {
    const list = make("ul", { class: "artifacts" });
    content.append(list);
    fillFolder(list, folder, root);
  });
}

function fileRow(entry, root) {
  const several = entry.files.length > 1;
  const isImage = kindOf(entry.files.at(-1).path) === "image";
  const item = row(entry.name, `${several ? `${count(entry.files.length)} steps, ` : ""}${bytes(entry.size)}`, (content) => {
    const shown = make("div", { class: "preview" });
    const download = make("a", { class: "button", download: true, text: "Download" });
    const bar = make("p", { class: "toolbar" }, ...(several ? slider(entry, (file) => show(file)) : []), download, ...(isImage ? neighbours(item) : []));
    let newest = null;
    async function show(file) {
      newest = file;
      const url = `${root}/${file.path.split("/").map(encodeURIComponent).join("/")}`;
      download.href = url;
      try {
        const view = await viewOf(url, file);
        if (newest === file) shown.replaceChildren(...view);
      } catch (error) {
        if (newest === file) shown.replaceChildren(make("p", { class: "hint", text: error.message }));
      }
    }
    content.append(bar, shown);
    show(entry.files.at(-1));
  });
  if (isImage) connectNeighbours(item);
  return item;
}

/** Buttons that open the image before and after that of a row, as far as there are any. */
function neighbours(item) {
  const button = (text, by) => make("button", { type: "button", text, hidden: !neighbour(item, by), onclick: () => openInstead(item, by) });
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

/** A slider over the steps of a series, and the step that it is at. */
function slider(entry, show) {
  const last = entry.files.length - 1;
  const step = make("output", { text: `step ${count(entry.files[last].step)}` });
  const range = make("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": `Step of ${entry.name}` });
  let timer;
  range.addEventListener("input", () => {
    const file = entry.files[Number(range.value)];
    setText(step, `step ${count(file.step)}`);
    range.setAttribute("aria-valuetext", step.textContent);
    clearTimeout(timer);
    timer = setTimeout(() => show(file), 80); // one read for a drag over many steps
  });
  return [range, step];
}
