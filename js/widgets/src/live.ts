/** The shares of the training loop in a snapshot, during an epoch and after it. */

import { isLive, type Shares, type Snapshot } from "@nbpipe/protocol";

/** Share of its time that the loop waited for data: lately, or in the whole epoch. */
export function waitedShare(snapshot: Snapshot): number {
  const { state, waited_s, waited_share, elapsed_s } = snapshot;
  if (state !== "paused") {
    return waited_share;
  }
  return elapsed_s > 0 ? Math.min(1, waited_s / elapsed_s) : 0;
}

/** Where the time of the training loop goes; nowhere where it had nothing and waits for nothing. */
export function loopShares(snapshot: Snapshot): Shares {
  const none = { busy: 0, starved: 0, blocked: 0, waiting: 0 };
  if (snapshot.state === "paused") {
    return { ...none, waiting: 1 };
  }
  const waited = waitedShare(snapshot);
  const had = snapshot.delivered > snapshot.resumed || isLive(snapshot);
  return had && snapshot.elapsed_s > 0 ? { ...none, busy: 1 - waited, starved: waited } : none;
}
