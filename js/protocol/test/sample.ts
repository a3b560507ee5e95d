/** The snapshot that the Python tests write: what the kernel really sends. */

import snapshot from "../../../tests/data/snapshot.json";

type Fields = Record<string, unknown>;

/** A fresh copy, with some fields changed. */
export function sample(changes: Fields = {}): Fields {
  return { ...structuredClone(snapshot), ...changes };
}

/** A fresh copy, with some fields of the stage at `place` changed. */
export function sampleWithStage(changes: Fields, place = 0): Fields {
  const { stages } = structuredClone(snapshot);
  return sample({
    stages: stages.map((stage, at) => (at === place ? { ...stage, ...changes } : stage)),
  });
}
