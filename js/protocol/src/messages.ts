/** The messages of one run: those of the kernel are read here, those to the kernel have a type. */

import {
  atLeastZero,
  boolean,
  count,
  fields,
  integer,
  list,
  number,
  oneOf,
  orNull,
  ParseError,
  record,
  text,
} from "./read";
import { changes, line, snapshot } from "./snapshot";

/** At most so many points of history are taken. */
export const POINTS = 600;

const times = list(number, POINTS);
const rates = list(orNull(atLeastZero), POINTS);

/**
 * Rates [items/s] of each stage at `time_s` [Unix s]; null where nothing ran, between two epochs.
 * `epoch` is the number of the last one.
 */
function history(value: unknown, at: string) {
  const given = fields(value, at);
  const time_s = times(given.time_s, `${at}.time_s`);
  if (time_s.some((moment, place) => place > 0 && moment < (time_s[place - 1] ?? moment))) {
    throw new ParseError(`${at}.time_s must be ascending`);
  }
  const stages = new Map<string, readonly (number | null)[]>();
  for (const [address, column] of Object.entries(fields(given.stages, `${at}.stages`))) {
    const read = rates(column, `${at}.stages[${JSON.stringify(address)}]`);
    if (read.length !== time_s.length) {
      throw new ParseError(`${at}.stages must be as long as time_s, got ${read.length}`);
    }
    stages.set(address, read);
  }
  const epoch = orNull(integer)(given.epoch, `${at}.epoch`);
  return { time_s, stages, changes: changes(given.changes, `${at}.changes`), epoch };
}

export type HistoryPart = Readonly<ReturnType<typeof history>>;

/** The answer to a message; `value` is the value in force, where a knob was meant. */
function ack(value: unknown, at: string) {
  const given = fields(value, at);
  const type = "ack" as const;
  const id = count(given.id, `${at}.id`);
  const taken = orNull(integer)(given.value, `${at}.value`);
  return boolean(given.ok, `${at}.ok`)
    ? { type, id, ok: true as const, value: taken }
    : { type, id, ok: false as const, value: taken, error: line(given.error, `${at}.error`) };
}

export type Ack = Readonly<ReturnType<typeof ack>>;

/**
 * The result of an export, which was acknowledged when it began: the absolute path and notes, or
 * the refusal in full. With `edited`, the file holds what export did not write.
 */
const exported = record({
  type: oneOf(["exported"]),
  id: count,
  ok: boolean,
  path: text(4096),
  notes: list(line, 100),
  error: text(8100),
  edited: boolean,
});

export type Exported = ReturnType<typeof exported>;

/** Kernel to browser, by type. */
const messages = {
  ack,
  exported,
  hello: record({ type: oneOf(["hello"]), snapshot, history }),
  tick: record({ type: oneOf(["tick"]), snapshot }),
};

export type FromKernel = ReturnType<(typeof messages)[keyof typeof messages]>;

/** Read a message of the kernel; throws ParseError, which names the field that is wrong. */
export function parseMessage(value: unknown): FromKernel {
  const type = oneOf(["ack", "exported", "hello", "tick"])(
    fields(value, "message").type,
    "message.type",
  );
  return messages[type](value, type);
}

export const OPS = [
  "pause",
  "resume",
  "stop",
  "undo",
  "autotune",
  "autotune_stop",
  "autotune_undo",
] as const;

/** What a button asks for. */
export type Op = (typeof OPS)[number];

/** Browser to kernel. */
export type ToKernel =
  | { op: "set"; id: number; stage: string; knob: string; value: number }
  | { op: "give_back"; id: number; stage: string; knob: string }
  | { op: Op | "start"; id: number }
  | { op: "export"; id: number; path: string; overwrite: boolean }
  | { op: "view"; id: number; view: string; open: boolean }
  | { op: "alive"; id: number; views: string[] };
