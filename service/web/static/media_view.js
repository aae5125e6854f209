// Shows one medium of a job, such as an image: its content, its caption and a link to its file.

import { urlOf } from "./address.js";
import { artifactUrl, viewOf } from "./artifact_view.js";
import { histogramView } from "./artifact_histograms.js";
import { make } from "./page.js";

/**
 * A figure of a medium. `root` is the address of its job in the API; an error of reading the file is shown in it.
 *
 * @param {string} root
 * @param {Api.MediaResource} item
 */
export async function mediaView(root, item) {
  const caption = item.caption ? [make("figcaption", { text: item.caption })] : [];
  if (item.histogram)
    return make(
      "figure",
      {},
      ...histogramView([{ bins: [], values: [], ...item.histogram, step: item.step }]),
      ...caption,
    );
  const url = artifactUrl(root, item.path ?? "");
  const file = make("a", { href: urlOf(url), download: true, text: "Download" });
  const of = {
    path: item.path ?? "",
    size: null,
    type: item.type,
    alt: item.caption ?? `${item.key}, step ${item.step}`,
  };
  try {
    return make("figure", {}, ...(await viewOf(url, of)), ...caption, file);
  } catch (error) {
    const link = isRefusal(error) ? [] : [file];
    return make("figure", {}, make("p", { class: "hint", text: refusalOf(error) }), ...caption, ...link);
  }
}

/**
 * Whether a download of the file would be refused too.
 *
 * @param {any} error
 */
const isRefusal = ({ status }) => status === 403 || status === 404;

/**
 * What an error of reading media means for a reader.
 *
 * @param {any} error
 */
export function refusalOf({ status, code, message }) {
  if (status === 403) return "You may not read this run’s files.";
  if (status === 404) return code === "job_not_found" ? "The run was deleted." : "The file was deleted.";
  return message;
}

/**
 * A step as a user writes it; null if it is none.
 *
 * @param {string} text
 */
export const stepOf = (text) =>
  /^\d{1,15}$/.test(text.replaceAll(/\s/g, "")) ? Number(text.replaceAll(/\s/g, "")) : null;
