/** Header: one line of state, progress, rate and buttons; below it the bar and the export. */

import { isLive, type Snapshot } from "@nbpipe/protocol";
import { AutoSwitch } from "./auto-switch";
import { ChangesSinceExport } from "./changes-since-export";
import { h, setAttribute, setClass, setHidden, setPart, setText, setTitle } from "./dom";
import { ExportForm } from "./export-form";
import {
  formatAmount,
  formatClock,
  formatCount,
  formatProgress,
  formatSpan,
  isolatedNames,
} from "./format";
import { icon } from "./icons";
import { epochOf } from "./live";
import { OpButton } from "./op-button";
import type { Sections } from "./sections";
import type { Session } from "./session";

export class Header {
  readonly el: HTMLElement;
  private readonly stateIcon = icon("ready");
  private readonly stateWord = h("span", {});
  private readonly state = h("span", { class: "state", role: "status", "data-field": "state" });
  private readonly epoch = h("span", { class: "sub epoch" });
  private readonly progress = h("span", { class: "count", "data-field": "progress" });
  private readonly rate = h("span", { class: "pace", "data-field": "total-rate" });
  private readonly time = h("span", { class: "sub clock", "data-field": "time" });
  private readonly notice = h("span", { class: "notice", "data-field": "notice" });
  private readonly bar = h("div", { class: "bar", role: "progressbar", "aria-label": "epoch" });
  private readonly auto: AutoSwitch;
  private readonly buttons: readonly OpButton[];
  private readonly changesSinceExport = new ChangesSinceExport();
  private readonly exports: ExportForm;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.exports = new ExportForm(session, sections);
    const pause = new OpButton(session, "pause");
    const resume = new OpButton(session, "resume");
    const stop = new OpButton(session, "stop");
    this.auto = new AutoSwitch(session);
    this.buttons = [pause, resume, stop];
    this.state.append(this.stateIcon.el, this.stateWord);
    const swap = h("span", { class: "swap" }, pause.el, resume.el);
    const buttons = h("span", { class: "buttons" }, this.auto.el, swap, stop.el);
    buttons.append(this.exports.opener);
    const numbers = [this.epoch, this.progress, this.rate, this.time];
    const said = h("span", { class: "numbers" }, ...numbers);
    const top = h("div", { class: "top" }, this.state, said, this.notice, buttons);
    const rest = [this.bar, this.exports.el, this.changesSinceExport.el];
    this.el = h("header", { class: "head" }, top, ...rest);
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
    setTitle(this.state, isolatedNames(snapshot.title));
    this.auto.update(snapshot, enabled);
    for (const button of this.buttons) {
      button.update(snapshot, enabled);
    }
    this.updateProgress(snapshot);
    setText(this.rate, rateOf(snapshot));
    setText(this.time, timeOf(kernelGone ? { ...snapshot, left_s: null } : snapshot));
    this.exports.update(snapshot);
    this.changesSinceExport.update(snapshot);
  }

  private updateNotice(): void {
    const { refusal } = this.session;
    const closed = this.session.snapshot?.state === "closed" ? "this run is closed" : "";
    const text = refusal || this.session.notice() || closed;
    setText(this.notice, text);
    setTitle(this.notice, text);
    setHidden(this.notice, text === "");
    setClass(this.notice, "refused", refusal !== "");
    setAttribute(this.notice, "role", refusal === "" ? "note" : "alert");
  }

  private updateProgress(snapshot: Snapshot): void {
    const { delivered, total, unit, skipped } = snapshot;
    setText(this.epoch, `epoch ${epochOf(snapshot)}`);
    setPart(this.bar, "--fill", total ? delivered / total : 0);
    setClass(this.bar, "unknown", total === null && isLive(snapshot));
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

/** The rate now; that of the whole epoch when it is over. */
function rateOf(snapshot: Snapshot): string {
  const { state, unit, elapsed_s, items_per_s, delivered, resumed } = snapshot;
  if (elapsed_s === 0 || state === "paused") {
    return "";
  }
  const rate = isLive(snapshot) ? items_per_s : (delivered - resumed) / elapsed_s;
  return `${formatAmount(rate)} ${unit}/s`;
}

/** How long it still takes, or took. */
function timeOf(snapshot: Snapshot): string {
  const { elapsed_s, left_s } = snapshot;
  if (left_s !== null && isLive(snapshot)) {
    return `${formatClock(left_s)} left`;
  }
  if (elapsed_s === 0) {
    return "";
  }
  const span = formatSpan(elapsed_s, elapsed_s, !isLive(snapshot));
  return isLive(snapshot) ? `${span} so far` : `in ${span}`;
}
