// Types that several scripts of service/web/static share. They are checked, and never served.
// The namespace Api, the documents of the API, is generated from its OpenAPI document: tests/support/api_types.py.

type ClassOf<T> = abstract new (...parameters: any[]) => T;
type Child = Node | string | null | undefined;
/** Attributes of a new element; `text`, and listeners of events. */
type Properties = { [event: `on${string}`]: ((event: any) => void) | null | undefined } & { [name: string]: unknown };

type Job = Api.JobResource;
type Status = Job["status"];
type Scalar = string | number | boolean | null | undefined;
/** Values of a query string; a list becomes repeated parameters. */
type QueryParameters = Record<string, Scalar | Scalar[]>;
type RequestOptions = { method?: string; body?: any; headers?: Record<string, string>; signal?: AbortSignal };

/** The lower and the upper end of a range. */
type Extent = [number, number];
type Axis = "step" | "epoch" | "tokens" | "relative" | "time" | "seconds";

/** Points of a metric as the API sends them, with numbers for NaN and infinities. */
interface Points {
  steps: number[];
  values: number[];
  times: string[];
}

/** A curve with ascending positions; a hidden one has no row in the table of values. */
interface Curve {
  name: string;
  x: number[];
  y: number[];
  colour: string;
  /** Pixels of lines and gaps in turn; none: a solid line. */
  dash?: number[];
  key?: string;
  width?: number;
  opacity?: number;
  dots?: boolean;
  hidden?: boolean;
  /** The lower and the upper edge of a band around it. */
  band?: [number[], number[]];
  /** The id of the run, of which there are several. */
  run?: string;
}

type MarkKind = "checkpoint" | "resumed" | "interrupted";
/** A position without a step is known by time only. */
type StepMark = { step: number | null; time: string | null };
type Mark = { kind: MarkKind; x: number };

/** How a chart draws its curves. */
interface DrawnView {
  axis: Axis;
  log?: boolean;
  logX?: boolean;
  clip?: boolean;
  range: Extent | null;
  fromZero?: boolean;
  marks?: Mark[];
}

/** A reader's choices for the charts of a page; chart_view.js. */
interface ChartsView {
  axis: Axis;
  log: boolean;
  logX: boolean;
  logs: string[];
  weight: number;
  clip: boolean;
  range: Extent | null;
  search: string;
  pins: string[];
  toggled: string[];
  combined: string[][];
}

/** A chart of some metrics, or of those whose names begin with `prefix`; chart_list.js. */
interface ChartDefinition {
  id: string;
  title: string;
  keys: string[];
  prefix: string;
  unit: string;
  scale: number;
  note: string;
  section: string;
  fromZero: boolean;
}

/** Has the charts of a page: chart_grid.js draws them. */
interface ChartSource {
  charts(): ChartDefinition[];
  /** null if the curves are not loaded. */
  curvesOf(chart: ChartDefinition): Curve[] | null;
  /** Why a chart has no points: they are being read, could not be read, or do not exist. */
  absenceOf(chart: ChartDefinition): string;
  marks(): Mark[];
  /** The beginning of the names of exported files. */
  subject(): string;
  newestOf(chart: ChartDefinition, curves: Curve[]): string;
}

interface Window {
  uPlot: any;
}
interface HTMLElement {
  /** Of a frame of a chart, for tests. */
  chart?: object;
}

type Before<S extends string, End extends string> = S extends `${infer Start}${End}${string}` ? Start : S;
type LastOf<S extends string> = S extends `${string} ${infer Rest}` ? LastOf<Rest> : S;
type TagOf<S extends string> = Before<Before<Before<Before<S, ".">, "[">, ":">, "#">;
/** The class of the elements that a selector matches, by the name of its last element: `td > a.button` is of a link. */
type Matched<S extends string> = S extends `${string},${string}`
  ? HTMLElement
  : TagOf<LastOf<S>> extends infer Tag extends keyof HTMLElementTagNameMap
    ? HTMLElementTagNameMap[Tag]
    : HTMLElement;
interface ParentNode {
  querySelector<S extends string>(selector: S): Matched<S> | null;
  querySelectorAll<S extends string>(selector: S): NodeListOf<Matched<S>>;
}
interface Element {
  closest<S extends string>(selector: S): Matched<S> | null;
}

/** A schema of OpenAPI. */
type Schema = Record<string, any>;
interface Operation {
  id: string;
  method: string;
  path: string;
  summary: string;
  description?: string;
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[];
  requestBody?: any;
  responses?: Record<string, any>;
}

/** A folder of artifacts; its size and count are of all files below it. */
interface Folder {
  name: string;
  size: number;
  count: number;
  folders: Map<string, Folder>;
  entries: { name: string; path: string; size: number }[];
}
type HistogramLine = { step: number | null } & Api.Histogram;

type SendForJob = (job: Row) => Promise<any>;
type SentForJob = { job: Row; answer?: any; error?: Error };
type FinishedBulk = (name: string, sent: SentForJob[]) => void;
/** An action on the selected jobs. */
interface BulkAction {
  allows: (job: Row) => boolean;
  done: string;
  send?: SendForJob;
  undo?: string;
  verb?: string;
  warning?: string;
}

type Chart = import("../static/chart.js").Chart;
type ApiError = import("../static/api.js").ApiError;
type ChangeCharts = (values: Partial<ChartsView>) => void;

interface Array<T> {
  /** Like an index, not checked for its range. */
  at(index: number): T;
}

type Problem = { param: string | null; message: string };
type CurveStore = import("../static/curves.js").CurveStore;
/** A value of a metric: text stands for NaN and infinities. */
type MetricValue = number | string | null | undefined;
/** Changes fields of the spec in the editor, given by path; null removes one. */
type SetFields = (fields: Record<string, unknown>) => void;

/** An event `metrics` of a stream. */
interface MetricsReport {
  job_id: string;
  execution: number;
  resumed_from_step: number;
  points: { key: string; step: number; value: number | string; time: string }[];
  progress: Api.JobProgress | null;
  values: Record<string, number | string>;
  loss_metric: string | null;
}

/** A chart in a section of chart_grid.js. */
interface Panel {
  definition: ChartDefinition;
  figure: HTMLElement;
  frame: HTMLElement;
  output: HTMLElement;
  scale: HTMLElement;
  legend: HTMLElement;
  chart: Chart;
}
interface Section {
  element: HTMLDetailsElement;
  grid: HTMLElement;
  size: HTMLElement;
  isOpen: boolean;
  definitions: ChartDefinition[];
  pager: HTMLElement;
  range: HTMLElement;
  /** The number of the page of charts that is shown. */
  page: number;
}

/** The active jobs of a user, and their GPUs. */
type Usage = { name: string; running: number; inUse: number; waiting: number; requested: number };

/** A job with the fields that the table of jobs shows; job_rows.js. */
interface Row {
  id: string;
  name: string;
  project: string | null;
  status: Status;
  status_message: string;
  created_by: string;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  progress: Api.JobProgress | null;
  sweep_id: string | null;
  tags: Record<string, string>;
  notes: string | null;
  archived: boolean;
  spec: Record<string, any>;
  metrics: Record<string, MetricValue>;
  loss_metric: string | null;
  evaluation_metric: string | null;
  values: Record<string, any> | null;
  cause: string | null;
}
/** Jobs that share the values of some columns. */
type Group = { id: string; values: any[]; jobs: Row[] };
/** What a row shows beside the fields of its job. */
type Shown = { note: string; sweep?: string; curve: MetricValue[] | null; shown: Set<string> };

/** A column of the table of jobs. */
interface Column {
  name: string;
  label: string;
  className: string;
  width: number;
  valueOf: (job: Row) => any;
  cell: () => HTMLTableCellElement;
  fill: (cell: HTMLElement, job: Row, shown: Shown) => void;
  /** The key of the query's order; its best values are first in descending order if it begins with `-`. */
  sort?: string | null;
  note?: string;
  right?: boolean;
  isValue?: boolean;
  format?: (value: number, digits?: number) => string;
}
type ColumnBox = (name: string, label: string, title?: string) => HTMLElement;

/** A reader's choices for the table of jobs; table_view.js. */
interface TableView {
  where: string;
  sort: string;
  columns: string[];
  evaluation: string | null;
  fixed: string[];
  widths: Record<string, number>;
  group: string;
  selected: string[];
  charts: boolean;
}
type ChangeTable = (values: Partial<TableView>, options?: { isResize?: boolean }) => void;

/** A line of a log; lines of a search have a level and no raw text. */
interface LogLine {
  offset: number;
  text: string;
  raw: string;
  level?: string | null;
}
type LogSelection = { rank: string; attempt: number | null };
type LogQuery = { text?: string; regex?: string; level: string };
/** An event `log` of a stream. */
type LogEntry = { rank: string; attempt: number; offset: number; text: string };

/** A run that is compared with others. */
interface Run {
  id: string;
  name: string;
  status?: Status;
  tokens?: boolean;
  values: any[];
  code?: string | null;
  commit?: string | null;
}
/** An axis of parallel coordinates; position 0 is at its lower end. */
type Scale = { position: (value: any) => number; isLogarithmic: boolean; ticks: [number, string][] };
type Coordinates = {
  logarithmic?: (boolean | null)[];
  axes: string[];
  lines: { id: string; name: string; values: any[] }[];
};

/** A field of a YAML text: its line from 0, and the range of its value. `indent`: of a field in a block. */
type YamlField = { line: number; from: number; to: number; indent?: number };

/** A job of the page's data: the API's, with fewer fields. */
type EmbeddedJob = Omit<Row, "cause"> & { error: { type: string; message: string } | null };
type JobLike = { metrics?: Record<string, MetricValue>; loss_metric: string | null };
/** The events of a job that are the same but for their times; event_list.js. */
interface Entry {
  kind: string | null;
  size: number;
  newest: Api.EventResource;
  oldest: Api.EventResource;
  item: HTMLElement;
}
type Direction = "previousElementSibling" | "nextElementSibling";
type Edge = "top" | "bottom";
type JobKey = Pick<Api.JobKeyResource, "key" | "kind"> & { description?: string | null };
/** `whole`: it is a whole query. */
type Completion = { text: string; note: string; whole?: boolean };
/** Handlers of the events of a stream, by type. */
type Handlers = Record<string, (data: any, id?: string) => void>;

/** What a table is sorted by: the name of a column, or the number of a field. */
type Sorted = string | number;
type QueryCalls = { apply: (text: string) => void; edited: () => void };
interface SelectionCalls {
  /** The ids of all rows in their order. */
  rows: () => string[];
  /** The ids of the jobs of a row. */
  jobsOf: (id: string) => string[];
  isOpen: (id: string) => boolean;
  select: (ids: string[], isSelected: boolean) => void;
}
/** What the rows of the table of jobs need of the page. */
interface RowsContext {
  selected: Set<string>;
  job: (id: string) => Row | undefined;
  group: (id: string) => ShownGroup | undefined;
  /** The name of a sweep. */
  sweep: (id: string | null) => string | undefined;
  note: (id: string) => string | undefined;
  curve: (id: string) => MetricValue[] | null;
  colour: (id: string) => string | null;
}
type ShownGroup = Group & { columns: Column[]; closed: boolean };
interface VirtualRowsOptions {
  /** May scroll besides the window. */
  scroller: HTMLElement;
  create: (id: string) => HTMLElement;
  fill: (row: HTMLElement, id: string) => void;
  kindOf: (id: string) => string;
  visible: (ids: string[]) => void;
  nearEnd: () => void;
}
type ChartGrid = import("../static/chart_grid.js").ChartGrid;
type RunCurves = import("../static/run_curves.js").RunCurves;
type BuiltIn = Omit<Column, "name" | "className"> & { className?: string };
/** `chart` of chart_list.js. */
type ChartMaker = (id: string, title: string, keys: string[], options: Partial<ChartDefinition>) => ChartDefinition;

interface ChartGridOptions {
  /** Called when the range has changed. */
  onRange?: (range: Extent | null) => void;
  /** Called with the position of the pointer and the run whose curve it is at. */
  onHover?: (position: number | null, run: string | null) => void;
  /** Whether a section is open at first, of which an open one begins after so many rows of charts and has so many. */
  isOpen?: (name: string, before: number, rows: number) => boolean;
  /** The charts of a job that matter most. */
  headlinesOf?: (definitions: ChartDefinition[]) => ChartDefinition[];
  /** The width of the root. */
  width?: number;
}

/** What the comparison of runs offers to the group that a plugin adds. */
interface Comparison {
  runs: Run[];
  view: { key: string };
  /** Highlights a run everywhere; null: none. */
  highlight: (id: string | null) => void;
  /** Shows which runs a filter of the group leaves. */
  filter: (ids: Set<string>) => void;
  /** Reads the runs again after a change. */
  refresh: () => Promise<void>;
}

/** The compared runs as a group that a plugin knows, such as the members of a sweep. */
interface RunGroup {
  /** Whether it may get further runs, although all have ended. */
  readonly isRunning: boolean;
  /** The metric that is selected first. */
  readonly metric: string;
  /** Reads the group and shows its changes. */
  read: () => Promise<void>;
  /** A run as the group was last read; undefined: it belongs to no group. */
  stateOf: (id: string) => { status?: any; metrics: Record<string, MetricValue> } | undefined;
  /** The text and the CSS class of a run's chip. */
  chipOf: (run: Run) => { text: string; tone: string };
  /** Shows the group after its runs have changed. */
  show: () => void;
  highlight: (id: string | null) => void;
  addMetrics: (keys: string[]) => void;
}

/** What a plugin knows of the jobs in the table; jobs.js. */
interface JobNotes {
  /** Reads what is known of visible jobs. */
  request: (jobs: Row[]) => void;
  /** The text after a job's name. */
  changesOf: (id: string) => string | undefined;
  /** The name of a sweep. */
  nameOf: (sweep: string | null) => string | undefined;
}

/** Reads the text of a spec while it is written; submit.js. */
interface SpecReader {
  /** Called after each change of the text. */
  changed: () => void;
  /** The resolved spec; null while the text has problems or is being read. */
  spec: () => Record<string, any> | null;
  /** Whether the job is submitted although the reader advises against it. */
  isForced: () => boolean;
}

/** A link to the submit page with a fork of a job. */
/** A field in which two specs differ. */
type SpecDifference = { field: string; before?: unknown; after?: unknown; meaning?: string };
