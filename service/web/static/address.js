// Addresses on pages. The service may be below a path of its host, which the scripts leave out of paths.

const base = document.documentElement.dataset.base ?? "";

/**
 * The address of a path of the service, such as `/jobs`.
 *
 * @param {string} path
 */
export const urlOf = (path) => base + path;

/** The path and the query of this page. */
export function currentPath() {
  const { pathname, search } = location;
  return (pathname.startsWith(`${base}/`) ? pathname.slice(base.length) : pathname) + search;
}
