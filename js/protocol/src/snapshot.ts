/** Snapshot: a run at one moment, version 1. The readers are its statement; units are in the names. */

import {
  atLeastZero,
  boolean,
  count,
  integer,
  list,
  number,
  oneOf,
  orNull,
  ParseError,
  pageLink,
  type Reader,
  record,
  share,
  text,
  withDefault,
} from "./read";

export const VERSION = 1;

/** Address that stands for the training loop itself. */
export const CONSUMER = "consumer";

const STATES = [
  "ready",
  "running",
  "paused",
  "finished",
  "stopped",
  "cancelled",
  "failed",
  "closed",
] as const;

/** What a diagnosis finds at the stage that it names; with "keeps_up" nothing is wrong. */
const KINDS = [
  "limits",
  "keeps_up",
  "slower",
  "slows",
  "hangs",
  "starts",
  "failed",
  "empty",
] as const;

/** How bad a diagnosis is. A run that is over may still have an error: a call that hung. */
const SEVERITIES = ["good", "info", "warning", "error"] as const;

export const state = oneOf(STATES);
export const severity = withDefault(oneOf(SEVERITIES), "info");
export const name = text(200);
export const line = text(500);

const knob = record({
  name,
  value: integer,
  minimum: integer,
  maximum: integer,
  default: integer,
  unit: name,
});

export type Knob = ReturnType<typeof knob>;

/** Who does a stage's calls outside the kernel's own threads; `link` is a page that shows them. */
const workers = record({
  count,
  starting: count,
  memory_bytes: count,
  link: orNull(pageLink),
});

export type Workers = ReturnType<typeof workers>;

/**
 * Neighbours that share their workers are a region: the first has the workers and the calls, and
 * `shares` of the others is its address.
 */
const stage = record({
  address: name,
  op: name,
  executor: name,
  /** Where its calls run, in a word: the executor, a device, "isolated". */
  place: withDefault(name, ""),
  unit: name,
  items_out: count,
  items_per_s: atLeastZero,
  mean_per_s: atLeastZero,
  busy: share,
  starved: share,
  blocked: share,
  waiting: share,
  running: count,
  concurrency: count,
  queued: count,
  prefetch: count,
  /** 0 where nothing leaves the worker. */
  bound: count,
  errors: count,
  retries: count,
  latency_p50_s: atLeastZero,
  latency_p95_s: atLeastZero,
  bytes_per_s: orNull(atLeastZero),
  /** What it holds on its device; null elsewhere. */
  held_bytes: withDefault(orNull(count), null),
  workers: orNull(workers),
  shares: orNull(name),
  knobs: list(knob, 50),
});

export type Stage = ReturnType<typeof stage>;
export type Shares = Pick<Stage, "busy" | "starved" | "blocked" | "waiting">;

/** A knob and a value for it. */
export const target = record({ stage: name, knob: name, value: integer });

export type Target = ReturnType<typeof target>;

const diagnosis = record({
  kind: withDefault(oneOf(KINDS), "limits"),
  severity,
  stage: orNull(name),
  text: line,
  /** How it was seen, in a short phrase; "" where the text says it all. */
  evidence: withDefault(line, ""),
  advice: line,
  /** What the advice writes in the code; "" where it turns a knob, or names nothing. */
  code: withDefault(line, ""),
  suggestion: orNull(target),
});

export type Diagnosis = ReturnType<typeof diagnosis>;
export type Kind = Diagnosis["kind"];

const change = record({
  when_s: number,
  knob: text(400),
  old: integer,
  new: integer,
  by: name,
  why: line,
  /** A tuner's trial that was taken back. */
  taken_back: withDefault(boolean, false),
});

export type Change = ReturnType<typeof change>;

export const changes = list(change, 1000);

/**
 * A decision of a tuner; `knob` is "" where it turned none. `before` is the rate that was measured
 * last before it, `after` the next one [batches/s]; null where none was measured.
 */
const tuned = record({
  when_s: number,
  knob: text(400),
  old: integer,
  new: integer,
  why: line,
  before: orNull(atLeastZero),
  after: orNull(atLeastZero),
  taken_back: boolean,
});

export type Tuned = ReturnType<typeof tuned>;

/** What turns knobs by itself. */
const tuner = record({
  /** Whether it has not ended. */
  active: boolean,
  state: line,
  /** Knobs that others turned, with their values. */
  left_alone: list(target, 50),
  /** Its last decisions, oldest first; null means "as before". */
  done: orNull(list(tuned, 1000)),
});

export type Tuner = ReturnType<typeof tuner>;

const failure = record({
  stage: name,
  path: name,
  epoch: integer,
  error: line,
  traceback: text(4000),
  input: line,
  attempts: count,
  when_s: number,
});

export type Failure = ReturnType<typeof failure>;

/** A knob that was turned since the last export: its value in the file, and now. */
const turned = record({ stage: name, knob: name, old: integer, new: integer });

/** The last export: the name of the file, and what was turned since. */
const lastExport = record({ file: name, turned: list(turned, 100) });

export type LastExport = ReturnType<typeof lastExport>;

const version: Reader<typeof VERSION> = (value, at) => {
  if (value !== VERSION) {
    throw new ParseError(`${at} must be ${VERSION}, got ${String(value)}; reload the page`);
  }
  return VERSION;
};

export const snapshot = record({
  version,
  title: text(1000),
  time_s: number,
  state,
  epoch: integer,
  epochs: orNull(count),
  epochs_begun: orNull(count),
  delivered: count,
  resumed: withDefault(count, 0),
  total: orNull(count),
  unit: name,
  /** Items of the epoch that failed and were left out. */
  skipped: withDefault(count, 0),
  /** The next epoch is being read already. */
  ahead: withDefault(boolean, false),
  items_per_s: atLeastZero,
  elapsed_s: atLeastZero,
  left_s: orNull(atLeastZero),
  waited_s: atLeastZero,
  waited_share: share,
  /** Median step of the training loop; null where its steps are short, or not known. */
  step_s: withDefault(orNull(atLeastZero), null),
  /** The same while workers rest; null where they do not slow the loop. */
  step_at_rest_s: withDefault(orNull(atLeastZero), null),
  cpu_cores: orNull(atLeastZero),
  memory: orNull(record({ held_bytes: count, limit_bytes: count })),
  /** Memory of the stages' own process; null where they have none. */
  process_bytes: withDefault(orNull(count), null),
  error: line,
  stages: list(stage, 1000),
  diagnosis,
  undo: orNull(target),
  actions: list(name, 50),
  /** What turns its knobs by itself; null where that was never switched on. */
  tuner: withDefault(orNull(tuner), null),
  /** The last changes, oldest first; null means "as before". */
  changes: orNull(changes),
  /** The last failures, oldest first; null means "as before". */
  failures: orNull(list(failure, 100)),
  export: withDefault(orNull(lastExport), null),
});

export type Snapshot = ReturnType<typeof snapshot>;

/** Read a snapshot; throws ParseError, which names the field that is wrong. */
export function parseSnapshot(value: unknown): Snapshot {
  return snapshot(value, "snapshot");
}

/** Whether an epoch is in progress. */
export function isLive({ state }: Snapshot): boolean {
  return state === "running" || state === "paused";
}
