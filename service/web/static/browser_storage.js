// What the pages keep in this browser. A browser may refuse to store anything, which is no error.

/**
 * A stored text; null if there is none.
 *
 * @param {string} key
 */
export function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/**
 * Store a text; null removes it.
 *
 * @param {string} key
 * @param {string | null} text
 */
export function store(key, text) {
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    // It is forgotten when the page is closed.
  }
}
