// The jobs of the table in the order of the service: read page by page, and kept up to date.

import { call, query } from "./api.js";
import { embeddedRow, rowFields } from "./job_rows.js";

const PAGE_SIZE = 200;
const NEWEST = 50; // jobs that are read again to find new ones

export class JobList {
  /**
   * @param {{ jobs: EmbeddedJob[], has_more: boolean, last_id: string | null }} page
   * @param {() => URLSearchParams} request returns the parameters of the list.
   * @param {(isNew?: boolean) => void} changed is called when jobs were added or removed.
   */
  constructor({ jobs, has_more, last_id }, request, changed) {
    this.request = request;
    this.changed = changed;
    this.hasMore = has_more;
    this.lastId = last_id;
    /** @type {Promise<void> | null} */
    this.loading = null;
    this.generation = 0;
    /** @type {Map<string, Row>} */
    this.jobs = new Map(jobs.map((job) => [job.id, embeddedRow(job)]));
    this.order = jobs.map((job) => job.id);
  }

  /** @param {string} id */
  get(id) {
    return this.jobs.get(id);
  }

  /**
   * All loaded jobs in order.
   *
   * @returns {Row[]}
   */
  all() {
    return this.order.flatMap((id) => this.jobs.get(id) ?? []);
  }

  /**
   * @param {QueryParameters} parameters
   * @returns {Promise<Api.Page_JobResource>}
   */
  page(parameters) {
    const search = this.request();
    const chosen = Object.fromEntries([...new Set(search.keys())].map((name) => [name, search.getAll(name)]));
    return call(`/v1/jobs${query({ ...chosen, ...parameters })}`);
  }

  /** @param {Api.Page_JobResource} page */
  add(page) {
    for (const job of page.data) {
      if (!this.jobs.has(job.id)) this.order.push(job.id);
      this.jobs.set(job.id, rowFields(job));
    }
    this.hasMore = page.has_more;
    this.lastId = page.last_id ?? this.lastId;
  }

  /** Read the list from its beginning. Of several calls, the last one counts. */
  async reload() {
    this.generation += 1;
    const own = this.generation;
    const page = await this.page({ limit: PAGE_SIZE });
    if (own !== this.generation) return;
    this.jobs.clear();
    this.order = [];
    this.lastId = null;
    this.add(page);
    this.changed();
  }

  /** Read one more page; nothing if there is none, or one is being read. */
  more() {
    if (!this.hasMore || this.loading) return this.loading;
    const own = this.generation;
    this.loading = this.page({ limit: PAGE_SIZE, after: this.lastId })
      .then((page) => {
        if (own !== this.generation) return;
        this.add(page);
        this.changed();
      })
      .finally(() => {
        this.loading = null;
      });
    return this.loading;
  }

  /**
   * Read pages until so many jobs are loaded.
   *
   * @param {number} count
   */
  async load(count) {
    const own = this.generation;
    while (this.hasMore && this.jobs.size < count && own === this.generation) await this.more();
  }

  /** Read the first jobs again: updates since they were read, and jobs that are new or match the query now. */
  async refresh() {
    const own = this.generation;
    const page = await this.page({ limit: NEWEST }).catch(() => null);
    if (!page || own !== this.generation) return;
    const first = page.data.map((job) => job.id);
    const known = new Set(first);
    const isNew = first.some((id) => !this.jobs.has(id));
    for (const job of page.data) this.jobs.set(job.id, rowFields(job));
    this.order = [...first, ...this.order.filter((id) => !known.has(id))];
    if (!this.lastId) Object.assign(this, { hasMore: page.has_more, lastId: page.last_id });
    this.changed(isNew);
  }

  /**
   * @param {string} id
   * @param {Partial<Row>} change
   */
  update(id, change) {
    const job = this.jobs.get(id);
    if (job) this.jobs.set(id, { ...job, ...change });
    return Boolean(job);
  }

  /** @param {string} id */
  remove(id) {
    this.jobs.delete(id);
    this.order = this.order.filter((one) => one !== id);
  }
}
