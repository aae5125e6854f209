// The code of a job on its page: commit, branch and uncommitted changes, which are read when the tab is shown first.

import { urlOf } from "./address.js";
import { DIFF_FILE, readArchive } from "./code_archive.js";
import { showDiff } from "./code_diff.js";
import { count } from "./format.js";
import { byId, make, setText } from "./page.js";

/**
 * Show the code of a job once; the section is hidden if the job has none.
 *
 * @param {Job} job
 */
export function showCode(job) {
  const section = byId("code");
  if (byId("code-facts").childElementCount) return;
  const digest = job.spec.code;
  const { git_commit: commit, git_branch: branch, git_dirty: dirty } = job.metadata;
  section.hidden = !digest && !commit;
  if (section.hidden) return;
  setText(
    byId("code-note"),
    commit ? `commit ${commit.slice(0, 10)}${dirty === "yes" ? ", with uncommitted changes" : ""}` : "uploaded",
  );
  const facts = [
    ["Commit", commit],
    ["Branch", branch],
    ["Archive", digest],
  ].filter(([, value]) => value);
  byId("code-facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [
      make("dt", { text: name }),
      make("dd", { class: "mono" }, name === "Archive" ? archiveLink(value) : value),
    ]),
  );
  if (digest) showChanges(digest);
}

/** @param {string} digest */
const archiveLink = (digest) =>
  make("a", { href: urlOf(`/v1/code/${encodeURIComponent(digest)}`), download: true, text: digest });

/** @param {string} digest */
async function showChanges(digest) {
  setText(byId("code-state"), "Reading…");
  try {
    const files = await readArchive(digest);
    const diff = files.get(DIFF_FILE);
    setText(
      byId("code-state"),
      `${count(files.size)} file${files.size === 1 ? "" : "s"}${diff ? "; changes since the commit:" : "; no uncommitted changes are recorded."}`,
    );
    if (diff) showDiff(byId("code-diff"), new TextDecoder().decode(diff).split("\n"));
  } catch (error) {
    setText(byId("code-state"), error.message);
  }
}
