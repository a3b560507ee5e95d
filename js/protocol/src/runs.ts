/** What the kernel and a sidebar say to each other of all runs of a kernel, on one comm. */

import {
  atLeastZero,
  count,
  fields,
  flag,
  list,
  oneOf,
  orNull,
  type Reader,
  record,
  since,
  text,
  whole,
} from "./read";
import { SEVERITIES, type Severity, STATES, type State, type ToKernel } from "./types";

/** Target of the comm. */
export const RUNS_TARGET = "nbpipe.runs";

/** Version of these messages; what a panel says has its own, in the snapshot. */
export const RUNS_PROTOCOL = 1;

/** One run, in short. `run` is its number, which stays; "" is said where nothing is known. */
export interface Row {
  readonly run: number;
  readonly title: string;
  /** The name of its variable. */
  readonly variable: string;
  /** The id of the cell that started it. */
  readonly cell: string;
  readonly state: State;
  readonly epoch: number;
  readonly done: number;
  readonly total: number | null;
  readonly unit: string;
  readonly rate: number;
  readonly left_s: number | null;
  /** The address of the stage that limits it. */
  readonly limit: string;
  /** How bad the verdict is; a run that is over may still have an error. */
  readonly severity: Severity;
  /** The verdict, in one sentence. */
  readonly sentence: string;
  readonly actions: readonly string[];
}

/** The kernel's word to whoever did not find it yet. */
export interface RunsHere {
  readonly type: "here";
}

/** The kernel's first answer: what it speaks; of another protocol it has no rows. */
export interface RunsHello {
  readonly type: "hello";
  readonly protocol: number;
  readonly version: string;
  readonly runs: readonly Row[];
}

/** What became of a question: whether it was done, and for a chain its code. */
export interface RunsAnswer {
  readonly type: "ack" | "chain";
  readonly id: number;
  readonly ok: boolean;
  readonly code: string;
  readonly error: string;
}

export type FromRuns =
  | RunsHello
  | RunsAnswer
  | RunsHere
  | { readonly type: "runs"; readonly runs: readonly Row[] }
  /** A message as a panel would have it: its own parser reads it. */
  | { readonly type: "run"; readonly run: number; readonly message: unknown };

export const RUNS_OPS = ["pause_all", "resume_all", "stop_all"] as const;

/** What is asked of all runs. */
export type RunsOp = (typeof RUNS_OPS)[number];

export type ToRuns =
  | { op: "hello"; protocol: number; view: string }
  | { op: "view"; id: number; view: string; open: boolean }
  | { op: "alive"; id: number; views: string[] }
  | { op: "settings"; id: number; view: string; refresh_s: number }
  | { op: RunsOp; id: number }
  | { op: "chain"; run: number; id: number }
  | { op: "run"; run: number; message: ToKernel };

const MOST_RUNS = 1000;
const name = text(200);

const row = record<Row>({
  run: count,
  title: text(1000),
  variable: name,
  cell: name,
  state: oneOf(STATES),
  epoch: whole,
  done: count,
  total: orNull(count),
  unit: name,
  rate: atLeastZero,
  left_s: orNull(atLeastZero),
  limit: name,
  severity: since(oneOf(SEVERITIES), "info"),
  sentence: text(500),
  actions: list(name, 50),
});

const rows = list(row, MOST_RUNS);

/** Rows of another protocol are not read. */
const hello: Reader<RunsHello> = (value, at) => {
  const given = fields(value, at);
  const protocol = count(given.protocol, `${at}.protocol`);
  const runs = protocol === RUNS_PROTOCOL ? rows(given.runs, `${at}.runs`) : [];
  return { type: "hello", protocol, version: name(given.version, `${at}.version`), runs };
};

const answer: Reader<RunsAnswer> = (value, at) => {
  const given = fields(value, at);
  const ok = flag(given.ok, `${at}.ok`);
  const isChain = given.type === "chain";
  return {
    type: isChain ? "chain" : "ack",
    id: count(given.id, `${at}.id`),
    ok,
    code: ok && isChain ? text(100_000)(given.code, `${at}.code`) : "",
    error: ok ? "" : text(8100)(given.error, `${at}.error`),
  };
};

/** Read a message of the kernel; throws ParseError, which says where it is wrong. */
export function parseRuns(value: unknown): FromRuns {
  const given = fields(value, "message");
  const kinds = ["ack", "chain", "hello", "here", "run", "runs"] as const;
  const type = oneOf(kinds)(given.type, "message.type");
  if (type === "hello") {
    return hello(value, type);
  }
  if (type === "here") {
    return { type };
  }
  if (type === "runs") {
    return { type, runs: rows(given.runs, "runs.runs") };
  }
  if (type === "run") {
    return { type, run: count(given.run, "run.run"), message: given.message };
  }
  return answer(value, type);
}
