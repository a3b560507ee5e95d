/** Verdict: the finding, large; how it was seen, small; what to do about it, as a button. */

import { type Diagnosis, isLive, type Snapshot, type Target } from "@nbpipe/protocol";
import { CopyButton } from "./copy";
import {
  button,
  h,
  setAttribute,
  setClass,
  setDisabled,
  setHidden,
  setSentence,
  setText,
  setTitle,
} from "./dom";
import { isolated, unbroken } from "./format";
import { icon } from "./icons";
import { OpButton } from "./op-button";
import type { Session } from "./session";

export class Verdict {
  readonly el = h("section", { class: "verdict", "aria-label": "what limits this run" });
  private readonly icon = icon("advice");
  private readonly finding = h("strong", { class: "finding" });
  private readonly evidence = h("span", { class: "evidence", "data-field": "evidence" });
  private readonly advice = h("span", { class: "advice", "data-field": "advice" });
  private readonly apply = button({ class: "apply", "data-op": "apply" });
  private readonly copy = new CopyButton("copy-advice", this.advice);
  private readonly loop = h("code", { "data-field": "loop" });
  private readonly copyLoop = new CopyButton("copy-loop", this.loop);
  private readonly undo: OpButton;
  private suggestion: Target | null = null;

  constructor(private readonly session: Session) {
    this.undo = new OpButton(session, "undo");
    this.apply.addEventListener("click", () => {
      if (this.suggestion !== null) {
        const { stage, knob, value } = this.suggestion;
        session.set(stage, knob, value);
      }
    });
    const more = h("p", {}, this.evidence, " ", this.advice, " ", this.loop);
    const text = h("div", { class: "text", "data-field": "diagnosis" }, this.finding, " ", more);
    const acts = h("div", { class: "acts" });
    acts.append(this.apply, this.copy.el, this.copyLoop.el, this.undo.el);
    this.el.append(this.icon.el, text, acts);
  }

  update(snapshot: Snapshot | null, enabled: boolean): void {
    if (snapshot === null) {
      return;
    }
    const { error } = snapshot;
    const diagnosis = diagnosisOf(snapshot);
    this.updateText(diagnosis, error);
    this.updateLoop(snapshot);
    this.updateLook(snapshot);
    this.updateApply(diagnosis, enabled);
    this.copy.offer(diagnosis.code, `Copy ${diagnosis.code}`);
    setTitle(this.copy.el, "copy it, to write it in the cell that builds the pipeline");
    this.undo.update(snapshot, enabled, undoWords(snapshot));
    if (snapshot.actions.includes("autotune_undo") && this.isLastByAuto()) {
      setHidden(this.undo.el, true); // "Undo all" does the same
    }
  }

  /** Where a button carries the advice out, the button is the advice. */
  private updateText(diagnosis: Diagnosis, error: string): void {
    const { text, advice, suggestion } = diagnosis;
    const finding = text || (error === "" ? "Nothing to say yet." : "The epoch failed.");
    const evidence = diagnosis.evidence || (text.includes(error) ? "" : error);
    setText(this.finding, unbroken(finding));
    setText(this.evidence, unbroken(evidence));
    setSentence(this.advice, suggestion === null ? unbroken(advice) : "");
    setAttribute(this.finding, "role", diagnosis.severity === "error" ? "alert" : "none");
    setTitle(this.el, [finding, evidence, advice].filter((part) => part !== "").join("\n"));
  }

  /** A run that waits for its loop says how that begins. */
  private updateLoop({ state, unit }: Snapshot): void {
    const { variable } = this.session;
    const waits = state === "ready" && variable !== "";
    const item = unit.startsWith("batch") ? "batch" : "item";
    const line = waits ? `for ${item} in ${variable}:` : "";
    setText(this.loop, line);
    setHidden(this.loop, !waits);
    this.copyLoop.offer(waits ? `${line}\n    ` : "", "Copy");
    if (waits) {
      setSentence(this.advice, "Next, in a cell:");
    }
  }

  private updateLook(snapshot: Snapshot): void {
    const { severity, stage } = snapshot.diagnosis;
    const isCalm = severity === "good";
    const isAlarm = severity === "error" || snapshot.error !== "";
    this.icon.show(isCalm ? "finished" : isAlarm ? "failed" : "advice");
    setClass(this.el, "limits", !isCalm && !isAlarm && (stage !== null || severity === "warning"));
    setClass(this.el, "calm", isCalm);
    setClass(this.el, "alarm", isAlarm);
    setClass(this.el, "over", !isLive(snapshot));
  }

  private isLastByAuto(): boolean {
    return this.session.history.changes.at(-1)?.by === "autotune";
  }

  private updateApply(diagnosis: Diagnosis, enabled: boolean): void {
    this.suggestion = diagnosis.suggestion;
    setHidden(this.apply, this.suggestion === null);
    setDisabled(this.apply, !enabled);
    if (this.suggestion !== null) {
      const isBack = diagnosis.kind === "slower";
      setText(this.apply, applyWords(this.suggestion, diagnosis.stage, isBack));
      setTitle(this.apply, diagnosis.advice);
    }
  }
}

/** What a button does that carries an advice out: "Set concurrency to 4", of the stage that is named. */
export function applyWords(
  { stage, knob, value }: Target,
  named: string | null,
  isBack = false,
): string {
  const name = stage === named ? knob : `${isolated(stage)}.${knob}`;
  return `Set ${name} ${isBack ? "back to" : "to"} ${value}`;
}

function undoWords({ undo }: Snapshot): string {
  return undo === null ? "" : `set ${isolated(undo.stage)}.${undo.knob} back to ${undo.value}`;
}

/** While a tuner is at work, what it may try itself is no button. */
function diagnosisOf({ diagnosis, tuner }: Snapshot): Diagnosis {
  return tuner?.active === true ? { ...diagnosis, suggestion: null } : diagnosis;
}
