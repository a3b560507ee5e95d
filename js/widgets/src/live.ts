/** What a snapshot holds of its epoch: the shares of the training loop, and which epoch it is. */

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

/** Which epoch, as Python counts them, and of how many: "1 (2 of 3)". */
export function epochOf({ epoch, epochs, epochs_begun: begun }: Snapshot): string {
  return epochs === null ? `${epoch}` : `${epoch} (${begun} of ${epochs})`;
}
