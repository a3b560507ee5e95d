/** Header: state, title, buttons, export, the numbers of the epoch, progress. */

import { isLive, OPS, type Op, type Snapshot } from "@nbpipe/protocol";
import { ChangesSinceExport } from "./changes-since-export";
import {
  button,
  h,
  setAttribute,
  setClass,
  setDisabled,
  setHidden,
  setPart,
  setText,
  setTitle,
} from "./dom";
import { ExportForm } from "./export-form";
import {
  formatAmount,
  formatBytes,
  formatClock,
  formatCount,
  formatProgress,
  formatShare,
  formatSpan,
  isolated,
  isolatedNames,
} from "./format";
import { icon } from "./icons";
import { waitedShare } from "./live";
import type { Sections } from "./sections";
import type { Session } from "./session";

const LABELS: Readonly<Record<Op, string>> = {
  pause: "Pause",
  resume: "Resume",
  stop: "Stop",
  undo: "Undo",
};

const ICONS: Readonly<Record<Op, string>> = {
  pause: "paused",
  resume: "running",
  stop: "stopped",
  undo: "undo",
};

const FACTS = [
  "epoch",
  "rate",
  "elapsed",
  "left",
  "waited",
  "cpu",
  "memory",
  "process",
  "next",
] as const;

type Fact = (typeof FACTS)[number];

const FACT_LABELS: Readonly<Record<Fact, string>> = {
  epoch: "epoch",
  rate: "rate",
  elapsed: "elapsed",
  left: "left",
  waited: "training loop waits",
  cpu: "CPU",
  memory: "buffers",
  process: "own process",
  next: "next epoch",
};

export class Header {
  readonly el: HTMLElement;
  private readonly stateIcon = icon("ready");
  private readonly stateWord = h("span", {});
  private readonly title = h("span", { class: "title", "data-field": "title" });
  private readonly notice = h("span", { class: "notice", "data-field": "notice" });
  private readonly buttons = new Map<Op, HTMLButtonElement>();
  private readonly facts = new Map<Fact, HTMLElement>();
  private readonly bar = h("div", { class: "bar", role: "progressbar", "aria-label": "epoch" });
  private readonly progress = h("span", { class: "count" });
  private readonly changesSinceExport = new ChangesSinceExport();
  private readonly exports: ExportForm;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.exports = new ExportForm(session, sections);
    const state = h("span", { class: "state", role: "status", "data-field": "state" });
    state.append(this.stateIcon.el, this.stateWord);
    const buttons = h("span", { class: "buttons" }, this.button("undo"));
    buttons.append(h("span", { class: "swap" }, this.button("pause"), this.button("resume")));
    buttons.append(this.button("stop"), this.exports.opener);
    const top = h("div", { class: "top" }, state, this.title, this.notice, buttons);
    const facts = h("div", { class: "facts" }, ...FACTS.map((fact) => this.fact(fact)));
    const progress = h("div", { class: "progress", "data-field": "progress" }, this.bar);
    progress.append(this.progress);
    this.el = h(
      "header",
      { class: "head" },
      top,
      this.exports.el,
      facts,
      progress,
      this.changesSinceExport.el,
    );
  }

  update(snapshot: Snapshot | null, enabled: boolean): void {
    this.updateNotice();
    if (snapshot === null) {
      setText(this.stateWord, "no numbers yet");
      return;
    }
    const kernelGone = this.session.link === "kernelGone";
    const [shape, word] = kernelGone ? ["cancelled", "gone"] : stateOf(snapshot);
    this.stateIcon.show(shape);
    setText(this.stateWord, word);
    const title = isolatedNames(snapshot.title);
    setText(this.title, title);
    setTitle(this.title, title);
    this.updateButtons(snapshot, enabled);
    this.updateProgress(snapshot);
    this.exports.update(snapshot);
    this.changesSinceExport.update(snapshot);
    for (const [fact, text] of factsOf(kernelGone ? { ...snapshot, left_s: null } : snapshot)) {
      const node = this.facts.get(fact);
      if (node !== undefined) {
        setText(node, text);
        if (node.parentElement !== null) {
          setHidden(node.parentElement, text === "");
        }
      }
    }
  }

  private button(op: Op): HTMLButtonElement {
    const label = h("span", { class: "label" }, LABELS[op]);
    const made = button({ class: `op ${op}` }, icon(ICONS[op]).el, label);
    made.dataset.op = op;
    made.hidden = true;
    made.addEventListener("click", () => this.session.ask(op));
    this.buttons.set(op, made);
    return made;
  }

  private fact(fact: Fact): HTMLElement {
    const value = h("div", {
      class: "fact-value",
      "data-field": fact === "rate" ? "total-rate" : fact,
    });
    this.facts.set(fact, value);
    const box = h(
      "div",
      { class: `fact ${fact}` },
      h("div", { class: "caption" }, FACT_LABELS[fact]),
      value,
    );
    box.hidden = true;
    return box;
  }

  private updateNotice(): void {
    const { refusal } = this.session;
    const closed = this.session.snapshot?.state === "closed" ? "this run is closed" : "";
    const text = refusal || this.session.notice() || closed;
    setText(this.notice, text);
    setTitle(this.notice, text);
    setClass(this.notice, "refused", refusal !== "");
    setAttribute(this.notice, "role", refusal === "" ? "note" : "alert");
  }

  private updateButtons(snapshot: Snapshot, enabled: boolean): void {
    for (const op of OPS) {
      const made = this.buttons.get(op);
      if (made !== undefined) {
        setHidden(made, this.session.link === "kernelGone" || !snapshot.actions.includes(op));
        setDisabled(made, !enabled || this.session.isAsked(op));
      }
    }
    const undo = this.buttons.get("undo");
    const label = undo?.lastElementChild;
    if (undo && label && snapshot.undo !== null) {
      const { stage, knob, value } = snapshot.undo;
      const text = `Undo: ${isolated(stage)}.${knob} back to ${value}`;
      setText(label, text);
      setTitle(undo, text);
    }
  }

  private updateProgress(snapshot: Snapshot): void {
    const { delivered, total, unit, skipped } = snapshot;
    const share = total ? delivered / total : 0;
    setPart(this.bar, "--fill", share);
    setClass(this.bar, "unknown", total === null);
    const left = skipped === 0 ? "" : ` · ${formatCount(skipped)} skipped`;
    const text = formatProgress(delivered, total, unit) + left;
    setText(this.progress, text);
    setAttribute(this.bar, "aria-valuetext", text);
    if (total !== null) {
      setAttribute(this.bar, "aria-valuemin", "0");
      setAttribute(this.bar, "aria-valuemax", String(total));
      setAttribute(this.bar, "aria-valuenow", String(Math.min(delivered, total)));
    }
  }
}

/** The icon and the word of a state: a call that hangs, or an empty epoch, looks amiss. */
function stateOf({ state, diagnosis }: Snapshot): readonly [string, string] {
  const isAmiss = diagnosis.severity === "error" || diagnosis.severity === "warning";
  const isHung = state === "running" && diagnosis.kind === "hangs";
  return [isAmiss ? "failed" : state, isHung ? "hung" : state];
}

/** The numbers of the epoch as text; "" where one is not known. Epochs are counted from 0, as in Python. */
function factsOf(snapshot: Snapshot): [Fact, string][] {
  const { epoch, epochs, epochs_begun: begun, memory, cpu_cores: cores } = snapshot;
  const { process_bytes: process } = snapshot;
  const running = snapshot.state === "running";
  const share = formatShare(waitedShare(snapshot));
  const span = (time_s: number) => formatSpan(time_s, snapshot.elapsed_s, !isLive(snapshot));
  const waited = span(snapshot.waited_s);
  return [
    ["epoch", epochs === null ? `${epoch}` : `${epoch} (${begun} of ${epochs})`],
    ["rate", `${formatAmount(snapshot.items_per_s)} ${snapshot.unit}/s`],
    ["elapsed", span(snapshot.elapsed_s)],
    [
      "left",
      snapshot.left_s === null ? (isLive(snapshot) ? "–" : "") : formatClock(snapshot.left_s),
    ],
    ["waited", running ? `${share} now · ${waited} in all` : `${share} · ${waited}`],
    ["cpu", cores === null ? "" : `${cores.toFixed(1)} cores`],
    [
      "memory",
      memory ? `${formatBytes(memory.held_bytes)} of ${formatBytes(memory.limit_bytes)}` : "",
    ],
    ["process", process === null ? "" : formatBytes(process)],
    ["next", snapshot.ahead ? "begun" : ""],
  ];
}
