/** Numbers as people read them; three digits at most, so that their width stays. */

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
/** A count that is larger is not written out. */
const LARGEST = 1e15;
const MINUTE_S = 60;
const HOUR_S = 3600;
const THIN = "\u202f";

/** Letters of a short name, and of them those before the cut. */
const NAME = 20;
const HEAD = 9;

/** Digits of an amount below 1,000. */
function digits(amount: number): string {
  if (amount === 0) {
    return "0";
  }
  const decimals = amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return amount.toFixed(decimals);
}

function scaled(amount: number): [string, string] {
  let step = 0;
  let rest = amount;
  while (rest >= 999.5 && step < PREFIXES.length - 1) {
    rest /= 1000;
    step += 1;
  }
  return [digits(rest), PREFIXES[step] ?? ""];
}

/** 12345 is "12.3 k". */
export function formatAmount(amount: number): string {
  const [number, prefix] = scaled(amount);
  return prefix ? `${number}${THIN}${prefix}` : number;
}

/** 12345 is "12,345": a count, whole unless it is huge. */
export function formatCount(count: number): string {
  return count < LARGEST ? count.toLocaleString("en-US") : formatAmount(count);
}

/** The word for so many "items" or "batches": 1 is an "item". */
export function unitOf(count: number, unit: string): string {
  return count === 1 ? unit.replace(/(?<=item)s$|(?<=batch)es$/, "") : unit;
}

/** "120 of 500 batches"; "120 batches" where the total is not known. */
export function formatProgress(done: number, total: number | null, unit: string): string {
  const of = total === null ? "" : ` of ${formatCount(total)}`;
  return `${formatCount(done)}${of} ${unitOf(total ?? done, unit)}`;
}

/** 12 is "12", 12345 is "12.3 k": a count in few digits. */
export function formatBrief(count: number): string {
  return count < 1000 ? String(count) : formatAmount(count);
}

/** 1.3e9 is "1.30 GB". */
export function formatBytes(size_bytes: number): string {
  const [number, prefix] = scaled(size_bytes);
  return `${number}${THIN}${prefix}B`;
}

/** Workers in one line: those that only start, else their memory. */
export function formatWorkers(count: number, starting: number, memory_bytes: number): string {
  const all = Math.max(count, starting);
  const noun = all === 1 ? "worker" : "workers";
  if (starting > 0) {
    return starting === all ? `starting ${all} ${noun}` : `${all} ${noun}, ${starting} starting`;
  }
  if (all === 0) {
    return "no workers";
  }
  return memory_bytes > 0 ? `${all} ${noun}, ${formatBytes(memory_bytes)}` : `${all} ${noun}`;
}

/** A short time with its unit: 0.0042 is "4.20 ms". */
export function formatTime(time_s: number): string {
  if (time_s <= 0) {
    return "–";
  }
  if (time_s >= 99.95) {
    return formatClock(time_s);
  }
  if (time_s >= 0.9995) {
    return `${digits(time_s)}${THIN}s`;
  }
  return time_s >= 0.0009995
    ? `${digits(time_s * 1e3)}${THIN}ms`
    : `${digits(time_s * 1e6)}${THIN}µs`;
}

/** A long time as a clock shows it: 83 is "1:23", 3725 is "1:02:05". */
export function formatClock(time_s: number): string {
  const whole = Math.round(time_s);
  const seconds = String(whole % MINUTE_S).padStart(2, "0");
  const minutes = Math.floor(whole / MINUTE_S) % MINUTE_S;
  const hours = Math.floor(whole / HOUR_S);
  return hours > 0
    ? `${hours}:${String(minutes).padStart(2, "0")}:${seconds}`
    : `${minutes}:${seconds}`;
}

/** A time of an epoch as a clock shows it; of one of seconds that is over, in tenths: "0.9 s". */
export function formatSpan(time_s: number, epoch_s: number, isOver: boolean): string {
  const isShort = isOver && epoch_s > 0 && epoch_s < 9.95;
  return isShort ? `${time_s.toFixed(1)}${THIN}s` : formatClock(time_s);
}

/** A rate at an axis: without the zeros behind its point that the numbers beside it do not have. */
export function formatTick(rate: number): string {
  return formatAmount(rate)
    .replace(/(\.\d*?)0+(?!\d)/, "$1")
    .replace(/\.(?!\d)/, "");
}

/** 0.97 is "97%". */
export function formatShare(share: number): string {
  return `${Math.round(share * 100)}%`;
}

/** The time of day of a moment, here: "14:03:59". */
export function formatMoment(when_s: number): string {
  const moment = new Date(when_s * 1000);
  return [moment.getHours(), moment.getMinutes(), moment.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** A sentence whose lines do not break between a number and its unit, or a knob and its value. */
export function unbroken(sentence: string): string {
  return sentence
    .replace(/(\d) (?=(?:[nµm]?s|min|[kMGT]?B)(?![\w]))/g, "$1\u00a0")
    .replace(/(concurrency|prefetch) (?=\d)/g, "$1\u00a0");
}

/** A name in few letters: where it is cut it keeps its end, which tells it from its like. */
export function formatName(name: string): string {
  const letters = Array.from(name);
  const parts = [letters.slice(0, HEAD), ["…"], letters.slice(HEAD + 1 - NAME)];
  return letters.length > NAME ? parts.flat().join("") : name;
}

/** Letters that are written from right to left, and characters that turn the direction. */
const TURNS = /[\u0590-\u08ff\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A name as it may stand in a line: its letters do not turn the order of what is beside it. */
export function isolated(name: string): string {
  return TURNS.test(name) ? `\u2068${name}\u2069` : name;
}

/** "files > decode", each name in its place, whichever way it is written. */
export function isolatedNames(title: string): string {
  return title.split(" > ").map(isolated).join(" > ");
}
