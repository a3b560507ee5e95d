/** Rows of the table: one for each stage, and one for the training loop. */

import {
  CONSUMER,
  type Failure,
  isLive,
  type Kind,
  type Shares,
  type Snapshot,
  type Stage,
} from "@nbpipe/protocol";
import {
  button,
  h,
  setAttribute,
  setClass,
  setDisabled,
  setHidden,
  setText,
  setTitle,
} from "./dom";
import { FailureList } from "./failures";
import { formatAmount, formatBrief, formatBytes, formatSpan, formatTime } from "./format";
import { icon } from "./icons";
import { KnobControl } from "./knob-control";
import { loopShares } from "./live";
import { Meter, SharesBar, Spark, type Words } from "./meters";
import type { Sections } from "./sections";
import type { Session } from "./session";
import { WorkersLine } from "./workers";

/** Where a stage stands among those that share their workers; "" when it shares none. */
export type Place = "" | "first" | "inner" | "last";

const PLACES: readonly Place[] = ["first", "inner", "last"];

/** By what is said of a stage, its icon and the words at its name. */
const MARKS: Readonly<Record<Kind, readonly [string, string]>> = {
  limits: ["limits", "limits"],
  keeps_up: ["finished", "sets the pace"],
  slower: ["limits", "slower since"],
  slows: ["limits", "slowed by workers"],
  hangs: ["failed", "call does not end"],
  starts: ["ready", "starting"],
  failed: ["failed", "failed"],
  empty: ["limits", "gave nothing"],
};

interface Throughput {
  readonly items_per_s: number;
  readonly unit: string;
  readonly isPaused: boolean;
}

/** Name, rate, sparkline and bar: what every row has. */
class Front {
  private readonly name = h("bdi", { class: "name" });
  readonly who: HTMLElement;
  readonly kind = h("span", { class: "kind" });
  private readonly amount = h("span", {});
  private readonly unit = h("span", { class: "unit" });
  readonly under = h("div", { class: "sub" });
  readonly spark = new Spark();
  readonly bar: SharesBar;
  readonly cells: readonly Element[];
  private readonly markIcon = icon("limits");
  private readonly markWord = h("span", {});
  private readonly mark = h("span", { class: "mark" }, this.markIcon.el, this.markWord);
  private drawn = -1;

  constructor(words?: Words) {
    this.bar = new SharesBar(words);
    const sub = h("div", { class: "sub" }, this.mark, " ", this.kind);
    this.who = h("div", { class: "cell who" }, this.name, sub);
    const now = h("div", { class: "value", "data-field": "rate" }, this.amount, " ", this.unit);
    const rate = h("div", { class: "cell rate" }, now, this.under);
    this.cells = [this.who, rate, this.spark.el, this.bar.el];
  }

  /** Show a name, which may go on in the next line behind a part of it. */
  setName(name: string): void {
    if (this.name.title !== name) {
      const parts = name.split(/(?<=[_.\-/])/);
      this.name.replaceChildren(...parts.flatMap((part) => [h("wbr"), part]).slice(1));
      setTitle(this.name, name);
    }
  }

  update(row: HTMLElement, kind: Kind | null, of: Throughput, shares: Shares): void {
    const [shape, word] = MARKS[kind ?? "limits"];
    const broken = kind === "failed" || kind === "hangs";
    setClass(row, "limits", kind !== null && kind !== "keeps_up" && !broken);
    setClass(row, "broken", broken);
    setClass(row, "calm", kind === "keeps_up");
    setHidden(this.mark, kind === null);
    this.markIcon.show(shape);
    setText(this.markWord, word);
    setText(this.amount, formatAmount(of.items_per_s));
    setText(this.unit, `${of.unit}/s`);
    this.bar.update(shares, of.isPaused);
  }

  draw(session: Session, address: string): void {
    const { history } = session;
    if (this.drawn !== history.version) {
      this.drawn = history.version;
      this.spark.update(history.time_s, history.rates(address));
    }
  }
}

export class StageRow {
  readonly el = h("div", { class: "row", role: "listitem" });
  private readonly front = new Front();
  private readonly workers = new WorkersLine();
  private readonly queue = new Meter("queue", "queue");
  private readonly running = new Meter("running", "calls");
  private readonly latency = h("div", { class: "cell latency", "data-field": "latency" });
  private readonly p50 = h("span", { class: "value" });
  private readonly p95 = h("span", { class: "sub" });
  private readonly errors = button({ class: "errors", "data-field": "errors" });
  private readonly failures = new FailureList();
  private readonly knobBox = h("div", { class: "knobs" });
  private readonly knobs = new Map<string, KnobControl>();
  private readonly sharer = h("span", { class: "said" });
  private readonly shared = h("div", { class: "knob shared sub" });
  private errorCount = 0;

  constructor(
    private readonly session: Session,
    private readonly address: string,
    private readonly sections: Sections,
  ) {
    this.el.dataset.stage = address;
    this.el.setAttribute("aria-label", address);
    const { latency } = this;
    latency.setAttribute("role", "img");
    latency.append(h("div", {}, h("span", { class: "prefix sub" }, "p50 "), this.p50), this.p95);
    const label = h("span", { class: "caption", "aria-hidden": "true" }, "errors");
    const errors = h("div", { class: "cell errors" }, label, this.errors);
    this.errors.addEventListener("click", () => {
      sections.toggle(this.section());
      this.showFailures();
    });
    this.el.append(...this.front.cells, this.queue.el, this.running.el, latency, errors);
    this.el.append(this.knobBox, this.failures.el);
    this.front.who.append(this.workers.el);
    this.shared.dataset.name = "concurrency";
    this.shared.append(h("span", { class: "caption", "aria-hidden": "true" }, "concurrency"));
    this.shared.append(this.sharer);
  }

  update(
    stage: Stage,
    place: Place,
    kind: Kind | null,
    { enabled, isPaused }: { enabled: boolean; isPaused: boolean },
  ): void {
    const { front } = this;
    for (const each of PLACES) {
      setClass(this.el, `region-${each}`, each === place);
    }
    this.workers.update(stage);
    front.setName(stage.address);
    const where = stage.place || stage.executor;
    setText(front.kind, `${stage.op} · ${where}`);
    setTitle(front.kind, `${stage.op} on ${where}; ${stage.items_out} ${stage.unit} made`);
    front.update(this.el, kind, { ...stage, isPaused }, stage);
    const bytes = stage.bytes_per_s;
    setText(
      front.under,
      bytes === null ? `mean ${formatAmount(stage.mean_per_s)}` : `${formatBytes(bytes)}/s`,
    );
    const { queued, bound, running, concurrency } = stage;
    this.queue.setBlank(bound === 0);
    this.queue.update(queued, bound, queueWords(stage));
    this.running.setBlank(stage.shares !== null);
    this.running.update(running, concurrency, `${running} of ${concurrency} calls in progress`);
    const [p50, p95] = [formatTime(stage.latency_p50_s), formatTime(stage.latency_p95_s)];
    setText(this.p50, p50);
    setText(this.p95, `p95 ${p95}`);
    setAttribute(this.latency, "aria-label", `latency: median ${p50}, 95th percentile ${p95}`);
    this.updateErrors(stage);
    this.updateKnobs(stage, enabled);
  }

  draw(): void {
    this.front.draw(this.session, this.address);
  }

  dispose(): void {
    for (const control of this.knobs.values()) {
      control.dispose();
    }
  }

  private section(): string {
    return `failures of ${this.address}`;
  }

  private updateErrors(stage: Stage): void {
    const { errors, retries } = stage;
    setText(this.errors, formatBrief(errors));
    setDisabled(this.errors, errors === 0);
    setClass(this.errors, "some", errors > 0);
    const said = `${errors} failed, ${retries} retried`;
    setTitle(this.errors, said);
    setAttribute(this.errors, "aria-label", `errors of ${this.address}: ${said}`);
    this.errorCount = errors;
    this.showFailures();
  }

  private showFailures(): void {
    const open = this.errorCount > 0 && this.sections.isOpen(this.section(), false);
    setHidden(this.failures.el, !open);
    setAttribute(this.errors, "aria-expanded", String(open));
    if (open) {
      const own = this.session.failures.filter(
        (failure: Failure) => failure.stage === this.address,
      );
      this.failures.update(own, this.errorCount);
    }
  }

  private updateKnobs(stage: Stage, enabled: boolean): void {
    const own = stage.knobs.filter(({ name }) => stage.shares === null || name !== "concurrency");
    this.showShared(stage.shares);
    this.dropKnobs(new Set(own.map(({ name }) => name)));
    for (const knob of own) {
      let control = this.knobs.get(knob.name);
      if (control === undefined) {
        control = new KnobControl(this.session, this.address, knob);
        this.knobs.set(knob.name, control);
        this.knobBox.append(control.el);
      }
      control.update(knob, enabled);
    }
  }

  /** Take away the controls of knobs that have no effect any more. */
  private dropKnobs(kept: ReadonlySet<string>): void {
    for (const [name, control] of this.knobs) {
      if (!kept.has(name)) {
        control.dispose();
        control.el.remove();
        this.knobs.delete(name);
      }
    }
  }

  /** Say where the concurrency is that this stage shares. */
  private showShared(shares: string | null): void {
    if (shares !== null) {
      setText(this.sharer, `shared with ${shares}`);
      setTitle(this.shared, `same workers as ${shares}, and one concurrency for both`);
      if (this.shared.parentElement === null) {
        this.knobBox.prepend(this.shared);
      }
    }
  }
}

const LOOP_WORDS: Words = new Map([
  ["busy", "training"],
  ["starved", "waits for data"],
]);

/** The training loop: it takes what the last stage makes. */
export class LoopRow {
  readonly el = h("div", { class: "row loop", role: "listitem", "aria-label": "training loop" });
  private readonly front = new Front(LOOP_WORDS);
  private readonly waited = h("div", { class: "cell waited sub" });

  constructor(private readonly session: Session) {
    this.el.dataset.stage = CONSUMER;
    this.front.setName("training loop");
    this.el.append(...this.front.cells, this.waited);
  }

  update(snapshot: Snapshot, kind: Kind | null): void {
    const isPaused = snapshot.state === "paused";
    setText(this.front.kind, `takes ${snapshot.unit}`);
    this.front.update(this.el, kind, { ...snapshot, isPaused }, loopShares(snapshot));
    const { waited_s, elapsed_s } = snapshot;
    const span = (time_s: number) => formatSpan(time_s, elapsed_s, !isLive(snapshot));
    setText(this.waited, `waited ${span(waited_s)} of ${span(elapsed_s)}${stepWords(snapshot)}`);
    setTitle(
      this.waited,
      "time that the training loop waited for data in this epoch, without pauses; median step",
    );
  }

  draw(): void {
    this.front.draw(this.session, CONSUMER);
  }
}

/** The median step of the loop, and what it is while workers rest. */
function stepWords({ step_s, step_at_rest_s }: Snapshot): string {
  if (step_s === null) {
    return "";
  }
  const atRest = step_at_rest_s === null ? "" : ` (${formatTime(step_at_rest_s)} at rest)`;
  return `, step ${formatTime(step_s)}${atRest}`;
}

/** Tell what is held; where calls are short, each of them may add a chunk to what prefetch allows. */
function queueWords({ queued, bound, prefetch, concurrency, unit }: Stage): string {
  const held = `${queued} of at most ${bound} ${unit} held ready`;
  const inChunks = bound > prefetch + concurrency;
  return inChunks ? `${held}: prefetch ${prefetch}, and a chunk for each short call` : held;
}
