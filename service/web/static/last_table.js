// The address of the table of jobs as it was last shown in this tab, which the links to it on all pages lead to.

import { urlOf } from "./address.js";
import { maybeById, visitor } from "./page.js";

const KEY = `trainyard.jobs.${visitor.name}`; // in the storage of the tab

/** The address of the table with the query, order, columns and filters that it had last. */
export function tableAddress() {
  try {
    return urlOf(`/jobs${sessionStorage.getItem(KEY) ?? ""}`);
  } catch {
    return urlOf("/jobs"); // a browser may refuse to store anything
  }
}

/**
 * Let the links in the navigation lead to this table; the selection is not kept.
 *
 * @param {URLSearchParams} parameters
 */
export function rememberTable(parameters) {
  const kept = new URLSearchParams(parameters);
  kept.delete("job");
  try {
    sessionStorage.setItem(KEY, kept.size ? `?${kept}` : "");
  } catch {
    // The links lead to the table with its defaults.
  }
  showTableLink();
}

/** Set the link in the navigation. */
export function showTableLink() {
  maybeById("jobs-link")?.setAttribute("href", tableAddress());
}
