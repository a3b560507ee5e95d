/** The protocol between kernel and browser: readers of what the kernel sends, types, history. */

export { History } from "./history";
export {
  type Ack,
  type Exported,
  type FromKernel,
  type HistoryPart,
  OPS,
  type Op,
  POINTS,
  parseMessage,
  type ToKernel,
} from "./messages";
export { ParseError } from "./read";
export * from "./runs";
export {
  type Change,
  CONSUMER,
  type Diagnosis,
  type Failure,
  isLive,
  type Kind,
  type Knob,
  type LastExport,
  parseSnapshot,
  type Shares,
  type Snapshot,
  type Stage,
  type Target,
  type Tuned,
  type Tuner,
  VERSION,
  type Workers,
} from "./snapshot";
