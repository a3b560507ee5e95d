/** Table of the stages: headings with what the bar means, a row for each stage, the training loop. */

import { CONSUMER, type Kind, type Snapshot, type Stage } from "@nbpipe/protocol";
import { h, setClass, setTitle } from "./dom";
import { LoopRow } from "./loop-row";
import { PARTS, type Part } from "./meters";
import { type Place, StageRow } from "./row";
import type { Sections } from "./sections";
import type { Session } from "./session";

/** More stages scroll inside the panel. */
const MOST = 12;

const MEANINGS: Readonly<Record<Part, string>> = {
  busy: "inside the function",
  starved: "no input",
  blocked: "no room after it",
  waiting: "no thread yet, on the way, or paused",
};

/** By column, its heading and what it holds. */
const HEADINGS: Readonly<Record<string, readonly [label: string, holds: string]>> = {
  who: ["stage", "a step of the pipeline; its arrow opens the rest"],
  time: ["where time goes", "what the slots of a stage did in the last 5 s"],
  rate: ["rate now", "what it handed on each second, in the last 5 s"],
  running: ["calls", "calls in progress / the most at a time"],
  main: ["concurrency", "the most calls at a time; a change acts while a cell trains"],
};

export class Table {
  readonly el: HTMLElement;
  private readonly list = h("div", { class: "stages", role: "list", "aria-label": "stages" });
  private readonly rows = new Map<string, StageRow>();
  private readonly loop: LoopRow;
  private readonly head = h("div", { class: "headings", "aria-hidden": "true" });
  /** The stage that was brought into view. */
  private inView: string | null = null;

  constructor(
    private readonly session: Session,
    private readonly sections: Sections,
  ) {
    this.loop = new LoopRow(sections);
    for (const [field, [label, holds]] of Object.entries(HEADINGS)) {
      const legend = field === "time" ? PARTS.map(meaning) : [];
      const heading = h("span", { class: `heading ${field}` }, label, ...legend);
      setTitle(heading, holds);
      this.head.append(heading);
    }
    this.el = h("section", { class: "table" }, this.list);
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
    this.bringIntoView(named);
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
    setClass(this.list, "many", rows.length > MOST);
    this.inView = null;
  }

  /** Scroll to the stage that is named, when it is another than before and nobody is at work here. */
  private bringIntoView(named: string | null): void {
    const row = this.rows.get(named ?? "")?.el;
    if (named === this.inView || row === undefined || this.list.matches(":hover, :focus-within")) {
      return;
    }
    this.inView = named;
    this.list.scrollTop = row.offsetTop - (this.list.clientHeight - row.offsetHeight) / 2;
  }
}

function meaning(part: Part): HTMLElement {
  const made = h("span", { class: "meaning" }, h("i", { class: `swatch part ${part}` }), part);
  setTitle(made, MEANINGS[part]);
  return made;
}

function placeOf(stage: Stage, below: Stage | undefined): Place {
  const goesOn = below !== undefined && below.shares === (stage.shares ?? stage.address);
  if (stage.shares === null) {
    return goesOn ? "first" : "";
  }
  return goesOn ? "inner" : "last";
}
