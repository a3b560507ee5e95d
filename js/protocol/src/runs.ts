/** The messages between the kernel and a sidebar about all runs of a kernel, on one comm. */

import type { ToKernel } from "./messages";
import {
  atLeastZero,
  boolean,
  count,
  fields,
  integer,
  list,
  oneOf,
  orNull,
  record,
  text,
  withDefault,
} from "./read";
import { line, name, severity, state, target } from "./snapshot";

/** Target of the comm. */
export const RUNS_TARGET = "nbpipe.runs";

/** Version of these messages; the messages of a panel have their own, in the snapshot. */
export const RUNS_PROTOCOL = 1;

/** One run, in short. */
const row = record({
  /** Its number, which stays. */
  run: count,
  title: text(1000),
  /** The name of its variable; "" where it has none. */
  variable: name,
  /** The id of the cell that started it; "" where there is none. */
  cell: name,
  state,
  epoch: integer,
  done: count,
  total: orNull(count),
  unit: name,
  rate: atLeastZero,
  left_s: orNull(atLeastZero),
  /** The address of the stage that limits it; "" where none does. */
  limit: name,
  /** How bad the diagnosis is; a run that is over may still have an error. */
  severity,
  /** The diagnosis: what was found, how it was seen, and the knob that would help. */
  sentence: line,
  evidence: withDefault(line, ""),
  suggestion: withDefault(orNull(target), null),
  actions: list(name, 50),
});

export type Row = ReturnType<typeof row>;

const rows = list(row, 1000);

/** The kernel's first answer: its protocol; rows of another protocol are not read. */
function hello(value: unknown, at: string) {
  const given = fields(value, at);
  const protocol = count(given.protocol, `${at}.protocol`);
  const runs = protocol === RUNS_PROTOCOL ? rows(given.runs, `${at}.runs`) : [];
  return { type: "hello" as const, protocol, version: name(given.version, `${at}.version`), runs };
}

export type RunsHello = Readonly<ReturnType<typeof hello>>;

/** The answer to a question: whether it was done, and for a chain its code. */
function answer(value: unknown, at: string) {
  const given = fields(value, at);
  const type = oneOf(["ack", "chain"])(given.type, `${at}.type`);
  const ok = boolean(given.ok, `${at}.ok`);
  return {
    type,
    id: count(given.id, `${at}.id`),
    ok,
    code: ok && type === "chain" ? text(100_000)(given.code, `${at}.code`) : "",
    error: ok ? "" : text(8100)(given.error, `${at}.error`),
  };
}

export type RunsAnswer = Readonly<ReturnType<typeof answer>>;

/** Kernel to sidebar, by type. */
const messages = {
  ack: answer,
  chain: answer,
  hello,
  /** For a sidebar that has not found the kernel yet. */
  here: record({ type: oneOf(["here"]) }),
  /** A message as a panel has it: the panel's own reader reads it. */
  run: record({ type: oneOf(["run"]), run: count, message: (value: unknown) => value }),
  runs: record({ type: oneOf(["runs"]), runs: rows }),
};

export type FromRuns = ReturnType<(typeof messages)[keyof typeof messages]>;

/** Read a message of the kernel; throws ParseError, which names the field that is wrong. */
export function parseRuns(value: unknown): FromRuns {
  const type = oneOf(["ack", "chain", "hello", "here", "run", "runs"])(
    fields(value, "message").type,
    "message.type",
  );
  return messages[type](value, type);
}

/** What is asked of all runs. */
export type RunsOp = "pause_all" | "resume_all" | "stop_all";

/** Sidebar to kernel. */
export type ToRuns =
  | { op: "hello"; protocol: number; view: string }
  | { op: "view"; id: number; view: string; open: boolean }
  | { op: "alive"; id: number; views: string[] }
  | { op: "settings"; id: number; view: string; refresh_s: number }
  | { op: RunsOp; id: number }
  | { op: "chain"; run: number; id: number }
  | { op: "run"; run: number; message: ToKernel };
