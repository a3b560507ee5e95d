/** Scale of a slider: its top is low enough to aim well, and moves when the value needs it. */

import type { Knob } from "@nbpipe/protocol";

/** The least that a slider reaches to, by knob. */
const LEAST: Readonly<Record<string, number>> = { prefetch: 32 };
const LEAST_ELSE = 16;

/** Value above which share of the top it is near the top. */
const NEAR = 0.9;

/** Next power of two that leaves room above `value`, within the knob's range. */
export function freshTop(knob: Knob, value: number): number {
  const wanted = Math.max(LEAST[knob.name] ?? LEAST_ELSE, 2 * value);
  return Math.min(knob.maximum, 2 ** Math.ceil(Math.log2(wanted)));
}

/** The top to go on with: `top` while it suits `value`, else a fresh one. */
export function suitedTop(knob: Knob, value: number, top: number | undefined): number {
  const suits = top !== undefined && top <= knob.maximum && value <= top * NEAR && value >= top / 4;
  return suits ? top : freshTop(knob, value);
}

/** The value that a key leads to from `value`; undefined for a key that means nothing here. */
export function stepped(knob: Knob, value: number, key: string, top: number): number | undefined {
  const to = target(knob, value, key, top);
  return to === undefined ? undefined : Math.min(knob.maximum, Math.max(knob.minimum, to));
}

function target(knob: Knob, value: number, key: string, top: number): number | undefined {
  switch (key) {
    case "ArrowUp":
    case "ArrowRight":
      return value + 1;
    case "ArrowDown":
    case "ArrowLeft":
      return value - 1;
    case "PageUp":
      return value + 10;
    case "PageDown":
      return value - 10;
    case "Home":
      return knob.minimum;
    case "End":
      return top;
    default:
      return undefined;
  }
}
