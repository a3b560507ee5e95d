/** What the kernel and the panel say to each other, version 1. Units are in the names. */

export const VERSION = 1;

/** Address that stands for the training loop itself. */
export const CONSUMER = "consumer";

export interface Knob {
  readonly name: string;
  readonly value: number;
  readonly minimum: number;
  readonly maximum: number;
  readonly default: number;
  readonly unit: string;
}

export interface Shares {
  readonly busy: number;
  readonly starved: number;
  readonly blocked: number;
  readonly waiting: number;
}

/** Who does a stage's calls outside the kernel's own threads; `link` is a page that shows them. */
export interface Workers {
  readonly count: number;
  readonly starting: number;
  readonly memory_bytes: number;
  readonly link: string | null;
}

/**
 * Neighbours that share their workers are a region: the first has the workers and the calls, and
 * `shares` of the others is its address. `bound` is 0 where nothing leaves the worker.
 */
export interface Stage extends Shares {
  readonly address: string;
  readonly op: string;
  readonly executor: string;
  /** Where its calls run, in a word: the executor, a device, "isolated". */
  readonly place: string;
  readonly unit: string;
  readonly items_out: number;
  readonly items_per_s: number;
  readonly mean_per_s: number;
  readonly running: number;
  readonly concurrency: number;
  readonly queued: number;
  readonly prefetch: number;
  readonly bound: number;
  readonly errors: number;
  readonly retries: number;
  readonly latency_p50_s: number;
  readonly latency_p95_s: number;
  readonly bytes_per_s: number | null;
  /** What it holds on its device; null elsewhere. */
  readonly held_bytes: number | null;
  readonly workers: Workers | null;
  readonly shares: string | null;
  readonly knobs: readonly Knob[];
}

/** A knob and a value for it. */
export interface Target {
  readonly stage: string;
  readonly knob: string;
  readonly value: number;
}

/** What a diagnosis says of the stage that it names; with "keeps_up" nothing is wrong. */
export const KINDS = [
  "limits",
  "keeps_up",
  "slower",
  "slows",
  "hangs",
  "starts",
  "failed",
  "empty",
] as const;

export type Kind = (typeof KINDS)[number];

/** How bad a diagnosis is. A run that is over may still have an error: a call that hung. */
export const SEVERITIES = ["good", "info", "warning", "error"] as const;

export type Severity = (typeof SEVERITIES)[number];

export interface Diagnosis {
  readonly kind: Kind;
  readonly severity: Severity;
  readonly stage: string | null;
  readonly text: string;
  readonly advice: string;
  /** What the advice would have written in the code; "" where it turns a knob, or names nothing. */
  readonly code: string;
  readonly suggestion: Target | null;
}

export interface Change {
  readonly when_s: number;
  readonly knob: string;
  readonly old: number;
  readonly new: number;
  readonly by: string;
  readonly why: string;
}

export interface Failure {
  readonly stage: string;
  readonly path: string;
  readonly epoch: number;
  readonly error: string;
  readonly traceback: string;
  readonly input: string;
  readonly attempts: number;
  readonly when_s: number;
}

export interface Memory {
  readonly held_bytes: number;
  readonly limit_bytes: number;
}

/** A knob that was turned since the last export: its value in the file, and now. */
export interface Turned {
  readonly stage: string;
  readonly knob: string;
  readonly old: number;
  readonly new: number;
}

/** The last export: the name of the file, and what was turned since. */
export interface LastExport {
  readonly file: string;
  readonly turned: readonly Turned[];
}

export const STATES = [
  "ready",
  "running",
  "paused",
  "finished",
  "stopped",
  "cancelled",
  "failed",
  "closed",
] as const;

export type State = (typeof STATES)[number];

export interface Snapshot {
  readonly version: typeof VERSION;
  readonly title: string;
  readonly time_s: number;
  readonly state: State;
  readonly epoch: number;
  readonly epochs: number | null;
  readonly epochs_begun: number | null;
  readonly delivered: number;
  readonly resumed: number;
  readonly total: number | null;
  readonly unit: string;
  /** Items of the epoch that failed and were left out. */
  readonly skipped: number;
  /** The next epoch is being read already. */
  readonly ahead: boolean;
  readonly items_per_s: number;
  readonly elapsed_s: number;
  readonly left_s: number | null;
  readonly waited_s: number;
  readonly waited_share: number;
  /** Median step of the training loop; null where its steps are short, or not known. */
  readonly step_s: number | null;
  /** The same while workers rest; null where they do not slow the loop. */
  readonly step_at_rest_s: number | null;
  readonly cpu_cores: number | null;
  readonly memory: Memory | null;
  /** Memory of the stages' own process; null where they have none. */
  readonly process_bytes: number | null;
  readonly error: string;
  readonly stages: readonly Stage[];
  readonly diagnosis: Diagnosis;
  readonly undo: Target | null;
  readonly actions: readonly string[];
  /** The last changes, oldest first; null means "as before". */
  readonly changes: readonly Change[] | null;
  /** The last failures, oldest first; null means "as before". */
  readonly failures: readonly Failure[] | null;
  readonly export: LastExport | null;
}

/** Whether an epoch is in progress. */
export function isLive({ state }: Snapshot): boolean {
  return state === "running" || state === "paused";
}

/**
 * Rates [items/s] of each stage at `time_s` [Unix s]; null where nothing ran, between two epochs.
 * `epoch` is the number of the last one.
 */
export interface HistoryPart {
  readonly time_s: readonly number[];
  readonly stages: ReadonlyMap<string, readonly (number | null)[]>;
  readonly changes: readonly Change[];
  readonly epoch: number | null;
}

export type Ack =
  | { readonly type: "ack"; readonly id: number; readonly ok: true; readonly value: number | null }
  | {
      readonly type: "ack";
      readonly id: number;
      readonly ok: false;
      readonly value: number | null;
      readonly error: string;
    };

export interface Hello {
  readonly type: "hello";
  readonly snapshot: Snapshot;
  readonly history: HistoryPart;
}

export interface Tick {
  readonly type: "tick";
  readonly snapshot: Snapshot;
}

/**
 * What became of an export, which was acknowledged when it began: the absolute path and notes, or
 * the refusal in full. With `edited`, the file holds what export did not write.
 */
export interface Exported {
  readonly type: "exported";
  readonly id: number;
  readonly ok: boolean;
  readonly path: string;
  readonly notes: readonly string[];
  readonly error: string;
  readonly edited: boolean;
}

/** Kernel to browser. */
export type FromKernel = Ack | Exported | Hello | Tick;

export const OPS = ["pause", "resume", "stop", "undo"] as const;

/** What a button asks for. */
export type Op = (typeof OPS)[number];

/** Browser to kernel. */
export type ToKernel =
  | { op: "set"; id: number; stage: string; knob: string; value: number }
  | { op: Op | "start"; id: number }
  | { op: "export"; id: number; path: string; overwrite: boolean }
  | { op: "view"; id: number; view: string; open: boolean }
  | { op: "alive"; id: number; views: string[] };
