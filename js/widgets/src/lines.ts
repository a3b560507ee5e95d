/** Lines of the chart, all in items/s: what limits and the training loop stand out, others are grey. */

import { CONSUMER, type Snapshot } from "@nbpipe/protocol";

export type Look = "other" | "limit" | "loop";

export interface Line {
  readonly address: string;
  readonly label: string;
  readonly unit: string;
  /** Items in one of what its stage hands on: a rate times this is in items/s. */
  readonly items: number;
  readonly look: Look;
}

/** The stages in order, then the training loop. */
export function linesOf(snapshot: Snapshot): Line[] {
  const { kind, stage: named } = snapshot.diagnosis;
  const lines: Line[] = [];
  let items = 1;
  let above = { unit: "items", items_out: 0 };
  for (const stage of snapshot.stages) {
    const { address, unit } = stage;
    if (address !== CONSUMER) {
      items = unit === "items" ? 1 : items * itemsIn(stage, above);
      const look = address === named && kind !== "keeps_up" ? "limit" : "other";
      lines.push({ address, label: address, unit, items, look });
      above = stage;
    }
  }
  const loop = { address: CONSUMER, label: "training loop", unit: snapshot.unit };
  return [...lines, { ...loop, items, look: "loop" }];
}

/** How many of the stage above go into one of a stage; 1 where that is not known. */
function itemsIn(
  stage: { unit: string; items_out: number },
  above: { unit: string; items_out: number },
): number {
  const isSame = stage.unit === above.unit || stage.items_out === 0;
  return isSame ? 1 : Math.max(1, Math.round(above.items_out / stage.items_out));
}
