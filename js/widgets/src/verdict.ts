/** Verdict: what limits the run and what to try, or why the epoch failed; two lines, always. */

import { CONSUMER, type Diagnosis, type Snapshot, type Target } from "@nbpipe/protocol";
import { button, h, setClass, setDisabled, setHidden, setText, setTitle } from "./dom";
import { icon } from "./icons";
import type { Session } from "./session";

export class Verdict {
  readonly el: HTMLElement;
  private readonly sentence = h("strong", {});
  private readonly advice = h("span", { class: "advice" });
  private readonly apply: HTMLButtonElement;
  private readonly diagnosis: HTMLElement;
  private readonly error = h("p", { class: "error", role: "alert", "data-field": "error" });
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
    this.diagnosis = h("div", { class: "diagnosis" }, icon("advice").el, text, this.apply);
    this.failed = h("div", { class: "failed" }, icon("failed").el, this.error);
    this.el = h("section", { class: "verdict", "aria-label": "what limits this run" });
    this.el.append(this.diagnosis, this.failed);
  }

  update(snapshot: Snapshot | null, enabled: boolean): void {
    const error = snapshot?.error ?? "";
    setText(this.error, error && `The epoch failed: ${error}`);
    setTitle(this.error, error);
    setHidden(this.failed, error === "");
    setHidden(this.diagnosis, error !== "");
    if (snapshot !== null) {
      this.updateDiagnosis(snapshot.diagnosis, enabled);
    }
  }

  private updateDiagnosis(diagnosis: Diagnosis, enabled: boolean): void {
    const { text, advice } = diagnosis;
    const joint = text === "" || advice === "" || /[.:;!?]$/.test(text) ? "" : ";";
    setText(this.sentence, (text || "Nothing to say yet.") + joint);
    setText(this.advice, advice);
    setTitle(this.diagnosis, `${text}${joint} ${advice}`.trim());
    this.suggestion = diagnosis.suggestion;
    setClass(this.el, "limits", diagnosis.stage !== null);
    setHidden(this.apply, this.suggestion === null);
    setDisabled(this.apply, !enabled);
    if (this.suggestion !== null) {
      const { stage, knob, value } = this.suggestion;
      setText(this.apply, `Apply: ${knob} ${value}`);
      setTitle(this.apply, `set ${stage === CONSUMER ? "" : `${stage}.`}${knob} to ${value}`);
    }
  }
}
