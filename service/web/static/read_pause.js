// Reads wait while a job is deleted: the browser logs an error for each read of what no longer exists.

const PAUSE = Symbol("pause");
/** @type {Set<AbortController>} */
const controllers = new Set(); // of the reads that have not ended
/** @type {Promise<void> | null} */
let pause = null;

/** Interrupt all reads, and hold them and further ones until the returned function is called. */
export function pauseReads() {
  let resume = () => {};
  pause = new Promise((resolve) => {
    resume = () => {
      pause = null;
      resolve();
    };
  });
  for (const controller of controllers) controller.abort(PAUSE);
  return resume;
}

/**
 * The result of `read(controller)`. A pause aborts the controller, and `read` is called again when the pause ends.
 *
 * @template T
 * @param {(controller: AbortController) => Promise<T>} read
 */
export async function outsidePauses(read) {
  for (;;) {
    while (pause) await pause;
    const controller = new AbortController();
    controllers.add(controller);
    try {
      return await read(controller);
    } catch (error) {
      if (controller.signal.reason !== PAUSE) throw error;
    } finally {
      controllers.delete(controller);
    }
  }
}
