/** Verdict: what limits the run and what to try, or why the epoch failed and what helps. */

import { CONSUMER, type Diagnosis, type Snapshot, type Target } from "@nbpipe/protocol";
import { CopyButton } from "./copy";
import { button, h, setClass, setDisabled, setHidden, setText, setTitle } from "./dom";
import { unbroken } from "./format";
import { icon } from "./icons";
import type { Session } from "./session";

export class Verdict {
  readonly el: HTMLElement;
  private readonly sentence = h("strong", {});
  private readonly advice = h("span", { class: "advice" });
  private readonly apply: HTMLButtonElement;
  private readonly code = new CopyButton("copy-advice", this.advice);
  private readonly diagnosis: HTMLElement;
  private readonly icon = icon("advice");
  private readonly error = h("strong", { role: "alert", "data-field": "error" });
  private readonly way = h("span", { class: "advice", "data-field": "way" });
  private readonly remedy = new CopyButton("copy-advice", this.way);
  private readonly failed: HTMLElement;
  private suggestion: Target | null = null;

  constructor(session: Session) {
    this.apply = button({ class: "apply", "data-op": "apply" }, "Apply");
    this.apply.addEventListener("click", () => {
      if (this.suggestion !== null) {
        const { stage, knob, value } = this.suggestion;
        session.set(stage, knob, value);
      }
    });
    const text = h("p", { "data-field": "diagnosis" }, this.sentence, " ", this.advice);
    this.diagnosis = h("div", { class: "diagnosis" }, this.icon.el, text, this.apply, this.code.el);
    const failed = h("p", { class: "error" }, this.error, " ", this.way);
    this.failed = h("div", { class: "failed" }, icon("failed").el, failed, this.remedy.el);
    this.el = h("section", { class: "verdict", "aria-label": "what limits this run" });
    this.el.append(this.diagnosis, this.failed);
  }

  update(snapshot: Snapshot | null, enabled: boolean): void {
    const error = snapshot?.error ?? "";
    const failed = snapshot?.diagnosis.kind === "failed" ? snapshot.diagnosis : null;
    const advice = failed?.advice ?? "";
    setText(this.error, error && unbroken(joined(`The epoch failed: ${error}`, advice)));
    setText(this.way, unbroken(advice));
    offer(this.remedy, failed?.code ?? "");
    setTitle(this.failed, `${this.error.textContent} ${advice}`.trim());
    setHidden(this.failed, error === "");
    setHidden(this.diagnosis, error !== "");
    if (snapshot !== null) {
      this.updateDiagnosis(snapshot.diagnosis, enabled);
    }
  }

  private updateDiagnosis(diagnosis: Diagnosis, enabled: boolean): void {
    const { text, advice, kind, severity } = diagnosis;
    const isCalm = severity === "good";
    const isAlarm = severity === "error";
    const sentence = joined(text || "Nothing to say yet.", text && advice);
    setText(this.sentence, unbroken(sentence));
    setText(this.advice, unbroken(advice));
    setTitle(this.diagnosis, `${sentence} ${advice}`.trim());
    this.suggestion = diagnosis.suggestion;
    this.icon.show(isCalm ? "finished" : isAlarm ? "failed" : "advice");
    setClass(this.el, "limits", diagnosis.stage !== null && !isCalm && !isAlarm);
    setClass(this.el, "calm", isCalm);
    setClass(this.el, "alarm", isAlarm);
    offer(this.code, diagnosis.code);
    setHidden(this.apply, this.suggestion === null);
    setDisabled(this.apply, !enabled);
    if (this.suggestion !== null) {
      const { stage, knob, value } = this.suggestion;
      const word = kind === "slower" ? "Undo" : "Apply";
      setText(this.apply, `${word}: ${knob} ${value}`);
      setTitle(this.apply, `set ${stage === CONSUMER ? "" : `${stage}.`}${knob} to ${value}`);
    }
  }
}

/** Offer what the advice would have written in the cell. */
function offer(copy: CopyButton, code: string): void {
  copy.offer(code, `Copy: ${code}`);
  setTitle(copy.el, "copy it, to write it in the cell that builds the pipeline");
}

/** Text that advice follows: with a mark between them. */
function joined(text: string, advice: string): string {
  return advice === "" || /[.:;!?]$/.test(text) ? text : `${text};`;
}
