/** What a snapshot means while an epoch is in progress, and after it. */

import type { Snapshot } from "@nbpipe/protocol";

/** Whether an epoch is in progress. */
export function isLive({ state }: Snapshot): boolean {
  return state === "running" || state === "paused";
}

/** Share of its time that the loop waited for data: lately, or in the whole epoch after it. */
export function waitedShare(snapshot: Snapshot): number {
  if (isLive(snapshot)) {
    return snapshot.waited_share;
  }
  const { waited_s, elapsed_s } = snapshot;
  return elapsed_s > 0 ? Math.min(1, waited_s / elapsed_s) : 0;
}
