// Work that is done in parts, so that no task of a page delays input and painting for long.

import { afterPaint } from "./page.js";

const BUDGET = 12; // milliseconds of a part

/**
 * Call `work(item, n)` for each item; after each part, the page is painted first. Newer work aborts `signal`.
 *
 * @template T
 * @param {T[]} items
 * @param {(item: T, n: number) => void} work
 * @param {AbortSignal | null} signal
 * @returns {Promise<boolean>} whether all was done.
 */
export async function inParts(items, work, signal = null) {
  let start = performance.now();
  for (const [n, item] of items.entries()) {
    if (performance.now() - start > BUDGET) {
      await afterPaint();
      start = performance.now();
    }
    if (signal?.aborted) return false;
    work(item, n);
  }
  return true;
}

/**
 * Call back with the size of an element's content, `[width, height]`, when it is known and when it changes; reads no layout.
 *
 * @param {Element} element
 * @param {(size: Extent) => void} callback
 */
export function onSize(element, callback) {
  new ResizeObserver(([{ contentRect }]) => {
    afterPaint().then(() => callback([Math.round(contentRect.width), Math.round(contentRect.height)]));
  }).observe(element);
}
