/** Chains of stages to simulate: name, operation, executor, time of a call [s], shared workers. */

export type Link = readonly [
  address: string,
  op: string,
  executor: string,
  cost_s: number,
  shares?: string,
];

const THREADS: readonly Link[] = [
  ["files", "source", "thread", 0],
  ["read", "map", "coroutine", 0.002],
  ["decode", "map", "process", 0.0162],
  ["<img src=x onerror=alert(1)>", "map", "thread", 0.0011],
  ["batch", "batch", "inline", 0.0008],
  ["to_device", "to_device", "cuda:0", 0.0034],
];

/** One region of three, a stage on Dask, one on an executor that says nothing of its workers. */
const REGION: readonly Link[] = [
  ["files", "source", "thread", 0],
  ["decode", "map", "process", 0.0112],
  ["augment", "map", "process", 0.004, "decode"],
  ["batch", "batch", "process", 0.0008, "decode"],
  ["embed", "map", "dask", 0.003],
  ["score", "map", "executor", 0.0004],
  ["to_device", "to_device", "cuda:0", 0.0034],
];

/** Names that are written from right to left, mixed ones, long ones. */
const NAMES: readonly Link[] = [
  ["קבצים_של_תמונות_מהמצלמה", "source", "isolated", 0],
  ["فك_ترميز", "map", "process", 0.0162],
  ["decode_תמונה_and_crop", "map", "isolated", 0.002],
  ["augment_with_a_rather_long_name_that_goes_on", "map", "isolated", 0.0011],
  ["batch", "batch", "inline", 0.0008],
  ["to_device", "to_device", "cuda:0", 0.0034],
];

export const CHAINS: ReadonlyMap<string, readonly Link[]> = new Map([
  ["threads", THREADS],
  ["region", REGION],
  ["names", NAMES],
]);
