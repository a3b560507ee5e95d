/** LoopRow: the training loop, which takes what the last stage makes; behind its arrow the epoch's numbers. */

import { CONSUMER, isLive, type Kind, type Snapshot } from "@nbpipe/protocol";
import { h, setText, setTitle } from "./dom";
import { Facts } from "./facts";
import { formatBytes, formatShare, formatSpan, formatTime } from "./format";
import { epochOf, loopShares, waitedShare } from "./live";
import type { Words } from "./meters";
import { Front } from "./row";
import type { Sections } from "./sections";

const WORDS: Words = new Map([
  ["busy", "training"],
  ["starved", "waits"],
]);

const FACTS = {
  epoch: "epoch",
  elapsed: "elapsed",
  waited: "waits for data",
  "step-time": "step",
  cpu: "CPU",
  memory: "buffers",
  process: "own process",
  next: "next epoch",
};

export class LoopRow {
  readonly el = h("div", { class: "row loop", role: "listitem", "aria-label": "training loop" });
  private readonly front: Front;
  private readonly facts = new Facts(FACTS);
  private readonly step = h("div", { class: "cell step-time sub" });

  constructor(sections: Sections) {
    this.el.dataset.stage = CONSUMER;
    this.front = new Front("training loop", "row of the training loop", sections, WORDS);
    this.front.more.append(this.facts.el);
    this.el.append(...this.front.cells, this.step, this.front.more);
  }

  update(snapshot: Snapshot, kind: Kind | null): void {
    const isPaused = snapshot.state === "paused";
    this.front.update(this.el, kind, snapshot, loopShares(snapshot), isPaused);
    const { step_s } = snapshot;
    setText(this.step, step_s === null ? "" : `step ${formatTime(step_s)}`);
    setTitle(this.step, "median time of a step of the training loop");
    this.facts.update(factsOf(snapshot), {
      waited: "time that the training loop waited for data in this epoch, without pauses",
    });
  }
}

/** The numbers of the epoch; "" where one is not known. */
function factsOf(snapshot: Snapshot): Record<keyof typeof FACTS, string> {
  const { memory, cpu_cores: cores, process_bytes: process, step_at_rest_s: rest_s } = snapshot;
  const span = (time_s: number) => formatSpan(time_s, snapshot.elapsed_s, !isLive(snapshot));
  const share = formatShare(waitedShare(snapshot));
  const waited = span(snapshot.waited_s);
  const { step_s } = snapshot;
  const step = step_s === null ? "" : formatTime(step_s);
  return {
    epoch: epochOf(snapshot),
    elapsed: span(snapshot.elapsed_s),
    waited:
      snapshot.state === "running" ? `${share} now · ${waited} in all` : `${share} · ${waited}`,
    "step-time": rest_s === null ? step : `${step} · ${formatTime(rest_s)} at rest`,
    cpu: cores === null ? "" : `${cores.toFixed(1)} cores`,
    memory: memory ? `${formatBytes(memory.held_bytes)} of ${formatBytes(memory.limit_bytes)}` : "",
    process: process === null ? "" : formatBytes(process),
    next: snapshot.ahead ? "begun" : "",
  };
}
