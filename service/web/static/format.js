// Numbers with units, durations and times as text. Pure functions.

export const NOTHING = "–";
/** @type {[string, number][]} */
const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

/**
 * The number of a metric's value; the API sends NaN and infinities, which JSON lacks, as strings.
 *
 * @param {MetricValue} value
 * @returns {any} a number; null or undefined for these.
 */
export const asNumber = (value) => (typeof value === "string" ? Number(value) : value);

/**
 * A number with `digits` significant digits.
 *
 * @param {MetricValue} value
 */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return NOTHING;
  const parsed = asNumber(value);
  if (!Number.isFinite(parsed)) return Number.isNaN(parsed) ? "NaN" : parsed > 0 ? "∞" : "-∞";
  const size = Math.abs(parsed);
  if (parsed && (size < 1e-3 || size >= 1e6)) {
    const [mantissa, exponent] = parsed.toExponential(digits - 1).split("e");
    return `${withoutTrailingZeros(mantissa)}e${Number(exponent)}`;
  }
  return withoutTrailingZeros(parsed.toFixed(Math.max(0, digits - 1 - (parsed ? Math.floor(Math.log10(size)) : 0))));
}

/** @param {string} text */
const withoutTrailingZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** Types of failures whose message says it all, as in `trainyard.contract.wire.reports`. */
const PLAIN_FAILURES = new Set([
  "ScriptFailed",
  "SystemExit",
  "CodeError",
  "EnvironmentRejected",
  "LaunchFailed",
  "NotStarted",
  "RankFailed",
  "DivergedError",
]);

/**
 * What a failure is shown as.
 *
 * @param {{ type: string, message: string }} failure
 */
export const failureText = ({ type, message }) =>
  PLAIN_FAILURES.has(type) ? message.trim() : `${type}: ${message.trim()}`;

/**
 * The same without the modules of the type, so that a short line has the cause.
 *
 * @param {{ type: string, message: string }} failure
 */
export const failureHeadline = ({ type, message }) =>
  failureText({ type: type.slice(type.lastIndexOf(".") + 1), message });

/** The units of charts: a value of bytes times `scale` is in `unit`. */
export const GIBI = { unit: "GiB", scale: 2 ** -30 };
export const MEBI_PER_SECOND = { unit: "MiB/s", scale: 2 ** -20 };

/**
 * A size of memory or files: bytes in powers of 1024, as in `trainyard.contract.sizes`.
 *
 * @param {number | null | undefined} value
 */
export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let rest = value;
  while (Math.round(Math.abs(rest)) >= 1000 && units.length > 1) {
    rest /= 1024;
    units.shift();
  }
  return `${number(rest, 3)} ${units[0]}`;
}

/**
 * Seconds in the two largest units: `3 h 20 min`.
 *
 * @param {number | null | undefined} seconds
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${number(seconds, 2)} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [unit, length] of UNITS) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    if (whole || parts.length) parts.push(whole ? `${whole} ${unit}` : "");
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

/**
 * An integer with thin spaces between thousands.
 *
 * @param {number | string | null | undefined} value
 */
export const count = (value) =>
  value === null || value === undefined ? NOTHING : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

/**
 * The step of a job's progress and, if it is known, the length of the run: `39 / 400`, or `39`.
 *
 * @param {{ step: number, total_steps: number | null }} progress
 */
export const stepText = ({ step, total_steps }, separator = " / ") =>
  total_steps ? `${count(step)}${separator}${count(total_steps)}` : count(step);

/**
 * Seconds in one unit.
 *
 * @param {number} seconds
 */
export function approximate(seconds) {
  const [unit, length] = UNITS.find(([, one]) => seconds >= one) ?? UNITS[3];
  return `${Math.floor(seconds / length)} ${unit}`;
}

/**
 * The time since an ISO time, in one unit.
 *
 * @param {string} iso
 */
export function age(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  return seconds < 60 ? "just now" : approximate(seconds);
}

const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const LONG = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/**
 * An ISO time in the user's time zone: "short" has minutes, "exact" has seconds, "long" has the zone.
 *
 * @param {string | number} iso
 * @param {string} form
 */
export const dateTime = (iso, form = "short") =>
  (form === "exact" ? EXACT : form === "long" ? LONG : SHORT).format(new Date(iso));

/** The time zone of all times: `Europe/Berlin, now UTC+02:00`. Log lines are in that of their node. */
export function timeZone() {
  const name = new Intl.DateTimeFormat().resolvedOptions().timeZone;
  const offset = -new Date().getTimezoneOffset();
  const [hours, minutes] = [Math.floor(Math.abs(offset) / 60), Math.abs(offset) % 60].map((one) =>
    String(one).padStart(2, "0"),
  );
  return `${name}, now UTC${offset < 0 ? "-" : "+"}${hours}:${minutes}`;
}

/**
 * The strategy of a spec: `fsdp · bf16 · LoRA 16`.
 *
 * @param {Record<string, any>} spec
 */
export const strategyLabel = (spec) =>
  [spec.strategy, spec.precision, spec.lora_rank ? `LoRA ${spec.lora_rank}` : null]
    .filter((part) => part && part !== "auto")
    .join(" · ");

const LONG_INTEGER = 1e10; // from which the zeros of whole numbers are hard to count

/**
 * A value of a spec's field, as in YAML.
 *
 * @param {any} value
 * @returns {string}
 */
export function specValue(value) {
  if (value === null || value === undefined) return NOTHING;
  if (typeof value === "string") return value;
  if (typeof value === "number" && !Number.isInteger(value)) return number(value);
  if (typeof value === "number" && Math.abs(value) >= LONG_INTEGER) return value.toExponential().replace("e+", "e");
  return Array.isArray(value) ? `[${value.map((one) => JSON.stringify(one)).join(", ")}]` : JSON.stringify(value);
}

/**
 * A value of a spec's field as a spec writes it, complete; `absent` for null, as in the reference of the spec.
 *
 * @param {any} value
 */
export const exactValue = (value) =>
  value === null || value === undefined ? "absent" : typeof value === "string" && value ? value : JSON.stringify(value);

/**
 * The first names of nodes, and the number of the others.
 *
 * @param {string[]} names
 */
export const nodeNames = (names) =>
  names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${names.length - 4} more` : "");
