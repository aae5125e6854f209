// Addresses on pages. The service may be below a path of its host, which the scripts leave out of paths.

const base = document.documentElement.dataset.base ?? "";

/**
 * The address of a path of the service, such as `/jobs`.
 *
 * @param {string} path
 */
export const urlOf = (path) => base + path;

/**
 * Set parameters to the texts of each, and remove those without texts.
 *
 * @param {URLSearchParams} parameters
 * @param {Record<string, string[]>} values
 */
export function setParameters(parameters, values) {
  for (const [name, texts] of Object.entries(values)) {
    parameters.delete(name);
    for (const text of texts) parameters.append(name, text);
  }
  return parameters;
}

/** The path and the query of this page. */
export function currentPath() {
  const { pathname, search } = location;
  return (pathname.startsWith(`${base}/`) ? pathname.slice(base.length) : pathname) + search;
}
