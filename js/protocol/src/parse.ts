/** The border: whatever comes from the kernel is checked here, once. */

import {
  atLeastZero,
  count,
  fields,
  flag,
  list,
  number,
  oneOf,
  orNull,
  ParseError,
  pageLink,
  type Reader,
  record,
  share,
  since,
  text,
  whole,
} from "./read";
import {
  type Ack,
  type Change,
  type Diagnosis,
  type Exported,
  type Failure,
  type FromKernel,
  type HistoryPart,
  KINDS,
  type Knob,
  type LastExport,
  type Memory,
  SEVERITIES,
  type Snapshot,
  STATES,
  type Stage,
  type Target,
  type Turned,
  VERSION,
  type Workers,
} from "./types";

/** At most so many points of history are taken. */
export const POINTS = 600;

const STAGES = 1000;
const name = text(200);
const line = text(500);

const knob = record<Knob>({
  name,
  value: whole,
  minimum: whole,
  maximum: whole,
  default: whole,
  unit: name,
});

const workers = record<Workers>({
  count,
  starting: count,
  memory_bytes: count,
  link: orNull(pageLink),
});

const stage = record<Stage>({
  address: name,
  op: name,
  executor: name,
  place: since(name, ""),
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
  bound: count,
  errors: count,
  retries: count,
  latency_p50_s: atLeastZero,
  latency_p95_s: atLeastZero,
  bytes_per_s: orNull(atLeastZero),
  held_bytes: since(orNull(count), null),
  workers: orNull(workers),
  shares: orNull(name),
  knobs: list(knob, 50),
});

const target = record<Target>({ stage: name, knob: name, value: whole });

const diagnosis = record<Diagnosis>({
  kind: since(oneOf(KINDS), "limits"),
  severity: since(oneOf(SEVERITIES), "info"),
  stage: orNull(name),
  text: line,
  advice: line,
  code: since(line, ""),
  suggestion: orNull(target),
});

const change = record<Change>({
  when_s: number,
  knob: text(400),
  old: whole,
  new: whole,
  by: name,
  why: line,
});

const failure = record<Failure>({
  stage: name,
  path: name,
  epoch: whole,
  error: line,
  traceback: text(4000),
  input: line,
  attempts: count,
  when_s: number,
});

const lastExport = record<LastExport>({
  file: name,
  turned: list(record<Turned>({ stage: name, knob: name, old: whole, new: whole }), 100),
});

const memory = record<Memory>({ held_bytes: count, limit_bytes: count });

const version: Reader<typeof VERSION> = (value, at) => {
  if (value !== VERSION) {
    throw new ParseError(`${at} must be ${VERSION}, got ${String(value)}; reload the page`);
  }
  return VERSION;
};

const snapshot = record<Snapshot>({
  version,
  title: text(1000),
  time_s: number,
  state: oneOf(STATES),
  epoch: whole,
  epochs: orNull(count),
  epochs_begun: orNull(count),
  delivered: count,
  resumed: since(count, 0),
  total: orNull(count),
  unit: name,
  skipped: since(count, 0),
  ahead: since(flag, false),
  items_per_s: atLeastZero,
  elapsed_s: atLeastZero,
  left_s: orNull(atLeastZero),
  waited_s: atLeastZero,
  waited_share: share,
  step_s: since(orNull(atLeastZero), null),
  step_at_rest_s: since(orNull(atLeastZero), null),
  cpu_cores: orNull(atLeastZero),
  memory: orNull(memory),
  process_bytes: since(orNull(count), null),
  error: line,
  stages: list(stage, STAGES),
  diagnosis,
  undo: orNull(target),
  actions: list(name, 50),
  changes: orNull(list(change, 1000)),
  failures: orNull(list(failure, 100)),
  export: since(orNull(lastExport), null),
});

const times = list(number, POINTS);
const rates = list(orNull(atLeastZero), POINTS);
const changes = list(change, 1000);

const history: Reader<HistoryPart> = (value, at) => {
  const given = fields(value, at);
  const time_s = times(given.time_s, `${at}.time_s`);
  if (time_s.some((moment, place) => place > 0 && moment < (time_s[place - 1] ?? moment))) {
    throw new ParseError(`${at}.time_s must be ascending`);
  }
  const stages = new Map<string, (number | null)[]>();
  for (const [address, column] of Object.entries(fields(given.stages, `${at}.stages`))) {
    const read = rates(column, `${at}.stages[${JSON.stringify(address)}]`);
    if (read.length !== time_s.length) {
      throw new ParseError(`${at}.stages must be as long as time_s, got ${read.length}`);
    }
    stages.set(address, read);
  }
  const epoch = orNull(whole)(given.epoch, `${at}.epoch`);
  return { time_s, stages, changes: changes(given.changes, `${at}.changes`), epoch };
};

const ack: Reader<Ack> = (value, at) => {
  const given = fields(value, at);
  const id = count(given.id, `${at}.id`);
  const taken = orNull(whole)(given.value, `${at}.value`);
  if (flag(given.ok, `${at}.ok`)) {
    return { type: "ack", id, ok: true, value: taken };
  }
  return { type: "ack", id, ok: false, value: taken, error: line(given.error, `${at}.error`) };
};

const exported: Reader<Exported> = record<Exported>({
  type: oneOf(["exported"] as const),
  id: count,
  ok: flag,
  path: text(4096),
  notes: list(line, 100),
  error: text(8100),
  edited: flag,
});

const messages = {
  ack,
  exported,
  hello: (value: unknown, at: string): FromKernel => {
    const given = fields(value, at);
    return {
      type: "hello",
      snapshot: snapshot(given.snapshot, `${at}.snapshot`),
      history: history(given.history, `${at}.history`),
    };
  },
  tick: (value: unknown, at: string): FromKernel => ({
    type: "tick",
    snapshot: snapshot(fields(value, at).snapshot, `${at}.snapshot`),
  }),
};

/** Read a snapshot; throws ParseError, which says where it is wrong. */
export function parseSnapshot(value: unknown): Snapshot {
  return snapshot(value, "snapshot");
}

/** Read a message of the kernel; throws ParseError, which says where it is wrong. */
export function parseMessage(value: unknown): FromKernel {
  const type = oneOf(["ack", "exported", "hello", "tick"] as const)(
    fields(value, "message").type,
    "message.type",
  );
  return messages[type](value, type);
}
