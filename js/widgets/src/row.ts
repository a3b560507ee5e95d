/** StageRow: a stage in one line; behind its arrow the numbers and knobs that are needed less often. */

import type { Failure, Kind, Shares, Stage } from "@nbpipe/protocol";
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
import { Facts } from "./facts";
import { FailureList } from "./failures";
import { formatAmount, formatBrief, formatBytes, formatShare, formatTime } from "./format";
import { icon } from "./icons";
import { KnobControl } from "./knob-control";
import { Meter, PARTS, SharesBar, type Words } from "./meters";
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
  slower: ["limits", "slower"],
  slows: ["limits", "slowed by workers"],
  hangs: ["failed", "hangs"],
  starts: ["ready", "starting"],
  failed: ["failed", "failed"],
  empty: ["limits", "gave nothing"],
};

/** Letters of a name that stay when it is cut: its end tells it from its like. */
const TAIL = 6;
const WHOLE = 12;
const CUTTABLE = /^[\u0020-\u04ff]*$/;

interface Throughput {
  readonly items_per_s: number;
  readonly unit: string;
}

/** Arrow and name, bar, rate: what every row has; and what the arrow opens. */
export class Front {
  readonly more = h("div", { class: "more" });
  readonly who: HTMLElement;
  readonly cells: readonly HTMLElement[];
  private readonly name = h("bdi", { class: "name" });
  private readonly opener: HTMLButtonElement;
  private readonly amount = h("span", {});
  private readonly unit = h("span", { class: "unit" });
  private readonly bar: SharesBar;
  private readonly markIcon = icon("limits");
  private readonly markWord = h("span", { class: "word" });
  private readonly mark = h("span", { class: "mark" }, this.markIcon.el, this.markWord);

  constructor(
    name: string,
    private readonly section: string,
    private readonly sections: Sections,
    words?: Words,
  ) {
    this.bar = new SharesBar(words);
    this.opener = button({ class: "open" }, h("i", { class: "arrow" }), this.name);
    this.opener.addEventListener("click", () => {
      sections.toggle(section);
      this.showMore();
    });
    this.who = h("div", { class: "cell who" }, this.opener, this.mark);
    const rate = h("div", { class: "cell rate", "data-field": "rate" });
    rate.append(this.amount, " ", this.unit);
    this.cells = [this.who, this.bar.el, rate];
    this.name.append(...parts(name));
    setTitle(this.name, name);
    this.showMore();
  }

  update(
    row: HTMLElement,
    kind: Kind | null,
    of: Throughput,
    shares: Shares,
    isPaused: boolean,
  ): void {
    const [shape, word] = MARKS[kind ?? "limits"];
    const broken = kind === "failed" || kind === "hangs";
    setClass(row, "limits", kind !== null && kind !== "keeps_up" && !broken);
    setClass(row, "broken", broken);
    setClass(row, "calm", kind === "keeps_up");
    setHidden(this.mark, kind === null);
    this.markIcon.show(shape);
    setText(this.markWord, word);
    setTitle(this.mark, word);
    setText(this.amount, formatAmount(of.items_per_s));
    setText(this.unit, `${of.unit}/s`);
    this.bar.update(shares, isPaused);
  }

  private showMore(): void {
    const open = this.sections.isOpen(this.section, false);
    setHidden(this.more, !open);
    setAttribute(this.opener, "aria-expanded", String(open));
  }
}

/** A name in two parts, of which the first is cut where there is no room. */
function parts(name: string): (Node | string)[] {
  const letters = Array.from(name);
  if (letters.length <= WHOLE || !CUTTABLE.test(name)) {
    return [h("span", { class: "lead" }, name)];
  }
  const [start, end] = [letters.slice(0, -TAIL), letters.slice(-TAIL)];
  return [h("span", { class: "lead" }, start.join("")), h("span", {}, end.join(""))];
}

const FACTS = {
  kind: "operation",
  shares: "where time goes",
  latency: "time of a call",
  mean: "last minute",
  bytes: "bytes",
  made: "made",
};

export class StageRow {
  readonly el = h("div", { class: "row", role: "listitem" });
  private readonly front: Front;
  private readonly workers = new WorkersLine();
  private readonly running = new Meter("running", "calls");
  private readonly queue = new Meter("queue", "queue");
  private readonly facts = new Facts(FACTS);
  private readonly errorWords = h("span", {});
  private readonly errors = button(
    { class: "errors", "data-field": "errors" },
    this.errorWords,
    h("span", { class: "word" }, "failed"),
  );
  private readonly failures = new FailureList();
  private readonly main = h("div", { class: "cell main" });
  private readonly knobBox = h("div", { class: "knobs" });
  private readonly knobs = new Map<string, KnobControl>();
  private readonly shared = h("span", { class: "shared sub" });
  private errorCount = 0;

  constructor(
    private readonly session: Session,
    private readonly address: string,
    private readonly sections: Sections,
  ) {
    this.el.dataset.stage = address;
    this.el.setAttribute("aria-label", address);
    this.front = new Front(address, `row of ${address}`, sections);
    this.errors.addEventListener("click", () => {
      sections.toggle(this.section());
      this.showFailures();
    });
    this.front.who.append(this.errors);
    this.facts.add("queue", this.queue.el);
    this.facts.add("workers", this.workers.el);
    this.front.more.append(this.knobBox, this.facts.el);
    this.el.append(...this.front.cells, this.running.el, this.main);
    this.el.append(this.front.more, this.failures.el);
  }

  update(
    stage: Stage,
    place: Place,
    kind: Kind | null,
    { enabled, isPaused }: { enabled: boolean; isPaused: boolean },
  ): void {
    for (const each of PLACES) {
      setClass(this.el, `region-${each}`, each === place);
    }
    this.front.update(this.el, kind, stage, stage, isPaused);
    const { queued, bound, running, concurrency } = stage;
    this.running.setBlank(stage.shares !== null);
    this.running.update(running, concurrency, `${running} of ${concurrency} calls in progress`);
    setHidden(this.queue.el, bound === 0);
    this.queue.update(queued, bound, queueWords(stage));
    this.facts.update(factsOf(stage));
    this.workers.update(stage);
    this.updateErrors(stage);
    this.updateKnobs(stage, enabled);
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
    setText(this.errorWords, formatBrief(errors));
    setHidden(this.errors, errors === 0);
    setDisabled(this.errors, errors === 0);
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

  /** The concurrency stands in the line, all else behind the arrow. */
  private updateKnobs(stage: Stage, enabled: boolean): void {
    const own = stage.knobs.filter(({ name }) => stage.shares === null || name !== "concurrency");
    this.showShared(stage.shares);
    this.dropKnobs(new Set(own.map(({ name }) => name)));
    for (const knob of own) {
      let control = this.knobs.get(knob.name);
      if (control === undefined) {
        control = new KnobControl(this.session, this.address, knob);
        this.knobs.set(knob.name, control);
        (knob.name === "concurrency" ? this.main : this.knobBox).append(control.el);
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
      setText(this.shared, `with ${shares}`);
      setTitle(this.shared, `same workers as ${shares}, and one concurrency for both`);
      if (this.shared.parentElement === null) {
        this.main.append(this.shared);
      }
    }
  }
}

function factsOf(stage: Stage): Record<keyof typeof FACTS, string> {
  const { unit, bytes_per_s: bytes, latency_p50_s: p50_s, latency_p95_s: p95_s } = stage;
  const shares = PARTS.filter((part) => stage[part] >= 0.005);
  return {
    kind: `${stage.op} · ${stage.place || stage.executor}`,
    shares: shares.map((part) => `${part} ${formatShare(stage[part])}`).join(" · "),
    latency: p50_s > 0 ? `${formatTime(p50_s)} · p95 ${formatTime(p95_s)}` : "",
    mean: `${formatAmount(stage.mean_per_s)} ${unit}/s`,
    bytes: bytes === null ? "" : `${formatBytes(bytes)}/s`,
    made: `${formatBrief(stage.items_out)} ${unit}`,
  };
}

/** Tell what is held; where calls are short, each of them may add a chunk to what prefetch allows. */
function queueWords({ queued, bound, prefetch, concurrency, unit }: Stage): string {
  const held = `${queued} of at most ${bound} ${unit} held ready`;
  const inChunks = bound > prefetch + concurrency;
  return inChunks ? `${held}: prefetch ${prefetch}, and a chunk for each short call` : held;
}
