// Numbers with units and times in words; `service/web/formatting.py` says the same on the server.

export const NOTHING = "–";

/** A value of a metric: JSON has no word for NaN and infinities, so they come as strings. */
export const asNumber = (value) => (typeof value === "string" ? Number(value) : value);

/** Four significant digits. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return NOTHING;
  const found = asNumber(value);
  if (!Number.isFinite(found)) return Number.isNaN(found) ? "NaN" : found > 0 ? "∞" : "-∞";
  const tall = Math.abs(found);
  if (found && (tall < 1e-3 || tall >= 1e6)) {
    const [mantissa, exponent] = found.toExponential(digits - 1).split("e");
    return `${trimmed(mantissa)}e${Number(exponent)}`;
  }
  return trimmed(found.toFixed(Math.max(0, digits - 1 - (found ? Math.floor(Math.log10(tall)) : 0))));
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** Bytes, in powers of 1000. */
export function size(value) {
  if (value === null || value === undefined) return NOTHING;
  let left = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(left) < 1000) return `${number(left, 3)} ${unit}`;
    left /= 1000;
  }
  return `${number(left, 3)} TB`;
}

/** Seconds as the two greatest units: `3 h 20 min`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${number(seconds, 2)} s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(left / length);
    left -= count * length;
    if (count || parts.length) parts.push(count ? `${count} ${unit}` : "");
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

/** With thin spaces between thousands. */
export const count = (value) =>
  value === null || value === undefined ? NOTHING : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

/** How long ago, in one unit. */
export function age(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  if (seconds < 60) return "just now";
  const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, one]) => seconds >= one);
  return `${Math.floor(seconds / length)} ${unit}`;
}

const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const LONG = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** A time in the reader's zone: to the minute, "exact" to the second, "long" with its zone. */
export const moment = (iso, form = "short") => ({ short: SHORT, exact: EXACT, long: LONG })[form].format(new Date(iso));

/** A time as the clocks of the reader's zone show it, for Plotly, which knows no zones. */
export function wallClock(iso) {
  if (!iso) return null;
  const at = new Date(iso);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, -1);
}

/** `fsdp · bf16 · LoRA 16`. */
export const madeOf = (spec) =>
  [spec.strategy, spec.precision, spec.lora_rank ? `LoRA ${spec.lora_rank}` : null].filter(Boolean).join(" · ");
