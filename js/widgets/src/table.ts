/** Table of the stages: headings, a row for each stage, the training loop, what the bar means. */

import { CONSUMER, type Kind, type Snapshot, type Stage } from "@nbpipe/protocol";
import { h } from "./dom";
import { LoopRow, type Place, StageRow } from "./row";
import type { Sections } from "./sections";
import type { Session } from "./session";

const HEADINGS = [
  ["who", "stage"],
  ["rate", "rate now"],
  ["spark", "last 60 s"],
  ["time", "where time goes"],
  ["queue", "queue"],
  ["running", "calls"],
  ["latency", "latency p50"],
  ["errors", "errors"],
  ["concurrency", "concurrency"],
  ["prefetch", "prefetch"],
] as const;

const MEANINGS = [
  ["busy", "inside the function"],
  ["starved", "no input"],
  ["blocked", "no room after it"],
  ["waiting", "no thread yet, on the way, or paused"],
] as const;

export class Table {
  readonly el: HTMLElement;
  private readonly list = h("div", { class: "stages", role: "list", "aria-label": "stages" });
  private readonly rows = new Map<string, StageRow>();
  private readonly loop: LoopRow;
  private readonly head: HTMLElement;

  constructor(
    private readonly session: Session,
    private readonly sections: Sections,
  ) {
    this.loop = new LoopRow(session);
    const headings = HEADINGS.map(([field, label]) =>
      h("span", { class: `heading ${field}` }, label),
    );
    this.head = h("div", { class: "headings", "aria-hidden": "true" }, ...headings);
    const meanings = MEANINGS.map(([part, meaning]) =>
      h("span", {}, h("i", { class: `swatch part ${part}` }), h("b", {}, part), ` ${meaning}`),
    );
    const legend = h("p", { class: "meanings sub" }, ...meanings);
    this.el = h("section", { class: "table" }, this.list, legend);
  }

  update(snapshot: Snapshot, enabled: boolean): void {
    const stages = snapshot.stages.filter((stage) => stage.address !== CONSUMER);
    const addresses = stages.map((stage) => stage.address);
    if (addresses.join("\n") !== [...this.rows.keys()].join("\n")) {
      this.rebuild(addresses);
    }
    const { stage: named, kind } = snapshot.diagnosis;
    const kindOf = (address: string): Kind | null => (address === named ? kind : null);
    const now = { enabled, isPaused: snapshot.state === "paused" };
    for (const [at, stage] of stages.entries()) {
      const place = placeOf(stage, stages[at + 1]);
      this.rows.get(stage.address)?.update(stage, place, kindOf(stage.address), now);
    }
    this.loop.update(snapshot, kindOf(CONSUMER));
  }

  /** Draw what is too dear to draw unseen. */
  draw(): void {
    for (const row of this.rows.values()) {
      row.draw();
    }
    this.loop.draw();
  }

  dispose(): void {
    for (const row of this.rows.values()) {
      row.dispose();
    }
    this.rows.clear();
  }

  private rebuild(addresses: readonly string[]): void {
    this.dispose();
    for (const address of addresses) {
      this.rows.set(address, new StageRow(this.session, address, this.sections));
    }
    const rows = [...this.rows.values()].map((row) => row.el);
    this.list.replaceChildren(this.head, ...rows, this.loop.el);
  }
}

function placeOf(stage: Stage, below: Stage | undefined): Place {
  const goesOn = below !== undefined && below.shares === (stage.shares ?? stage.address);
  if (stage.shares === null) {
    return goesOn ? "first" : "";
  }
  return goesOn ? "inner" : "last";
}
