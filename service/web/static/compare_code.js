// The difference between the uploaded code of two runs, on the page that compares runs.

import { differenceOf, readArchive } from "./code_archive.js";
import { showDiff } from "./code_diff.js";
import { byId, make, setText } from "./page.js";

const MAX_LINES = 5000;

/**
 * Connect the section; it is hidden unless runs have different code.
 *
 * @param {Run[]} runs
 */
export function connectCodes(runs) {
  const section = byId("code", HTMLDetailsElement);
  const coded = runs.flatMap((run) => (run.code ? [{ ...run, code: run.code }] : []));
  const codes = new Set(coded.map(({ code }) => code));
  section.hidden = codes.size < 2;
  if (section.hidden) return;
  setText(byId("code-note"), `${codes.size} versions, with their differences`);
  const [before, after] = [byId("code-before", HTMLSelectElement), byId("code-after", HTMLSelectElement)];
  const [older, newer] = [0, coded.findIndex(({ code }) => code !== coded[0].code)].sort((a, b) =>
    coded[a].id < coded[b].id ? -1 : 1,
  );
  const options = (/** @type {number} */ chosen) =>
    coded.map(({ name, commit }, n) =>
      make("option", { value: n, selected: n === chosen, text: `${name}${commit ? ` (${commit.slice(0, 8)})` : ""}` }),
    );
  before.replaceChildren(...options(older));
  after.replaceChildren(...options(newer));
  /** @type {Map<string, Promise<Map<string, Uint8Array>>>} */
  const archives = new Map();
  const read = (/** @type {string} */ code) => {
    const archive = archives.get(code) ?? readArchive(code);
    archives.set(code, archive);
    return archive;
  };
  let newest = 0;
  const show = async () => {
    newest += 1;
    const number = newest;
    setText(byId("code-state"), "Reading…");
    byId("code-diff").hidden = true;
    try {
      const [one, two] = await Promise.all([before, after].map((select) => read(coded[Number(select.value)].code)));
      if (number !== newest) return;
      const lines = differenceOf(one, two, MAX_LINES);
      setText(byId("code-state"), lines.length ? "" : "The code is the same.");
      if (lines.length) showDiff(byId("code-diff"), lines);
    } catch (error) {
      if (number === newest) setText(byId("code-state"), error.message);
    }
  };
  for (const select of [before, after]) select.addEventListener("change", show);
  section.addEventListener("toggle", show, { once: true });
  section.open = runs.length === 2;
}
