/** Lines of the chart: each stage has a colour and a dash pattern; no two have both alike. */

import { CONSUMER, type Snapshot } from "@nbpipe/protocol";

export interface Line {
  readonly address: string;
  readonly label: string;
  readonly unit: string;
  /** Class that gives the colour, see lines.css. */
  readonly tint: string;
  readonly dash: readonly number[];
  readonly width: number;
}

const TINTS = 7;
const DASHES: readonly (readonly number[])[] = [[], [7, 3], [2, 2], [9, 3, 2, 3]];

export function linesOf(snapshot: Snapshot): Line[] {
  const stages = snapshot.stages.filter((stage) => stage.address !== CONSUMER);
  const lines = stages.map(({ address, unit }, place) => ({
    address,
    label: address,
    unit,
    tint: `tint-${place % TINTS}`,
    dash: DASHES[place % DASHES.length] ?? [],
    width: 1.5,
  }));
  const loop = { address: CONSUMER, label: "training loop", unit: snapshot.unit };
  return [...lines, { ...loop, tint: "tint-loop", dash: [], width: 2.5 }];
}

/** Units of the lines, the left axis' first. */
export function unitsOf(lines: readonly Line[]): string[] {
  return [...new Set(lines.map((line) => line.unit))];
}
