/** Entry: one run in the list, and its panel where it is open. */

import type { Row } from "@nbpipe/protocol";
import {
  button,
  h,
  setAttribute,
  setClass,
  setHidden,
  setPart,
  setText,
  setTitle,
} from "@nbpipe/widgets/src/dom";
import { isolatedNames, unbroken } from "@nbpipe/widgets/src/format";
import { icon } from "@nbpipe/widgets/src/icons";
import { applyWords } from "@nbpipe/widgets/src/verdict";
import { randomName, View } from "@nbpipe/widgets/src/view";
import { leftOf, nameOf, progressOf, rateOf, stateOf } from "./format";
import type { RunInKernel } from "./run";

export class Entry {
  readonly el: HTMLLIElement;
  private readonly head: HTMLButtonElement;
  private readonly stateIcon = icon("ready");
  private readonly state = h("span", { "data-field": "state" });
  private readonly name = h("span", { class: "name", "data-field": "name" });
  private readonly bar = h("span", { class: "bar", "aria-hidden": "true" });
  private readonly progress = h("span", { "data-field": "progress" });
  private readonly rate = h("span", { class: "rate", "data-field": "rate" });
  private readonly left = h("span", { "data-field": "left" });
  private readonly sentence = h("span", { class: "sentence", "data-field": "sentence" });
  private readonly evidence = h("span", { class: "evidence", "data-field": "evidence" });
  private readonly apply = button({ class: "apply", "data-op": "apply" });
  private readonly details = h("div", { class: "details" });
  private suggestion: Row["suggestion"] = null;
  private view: View | undefined;

  constructor(readonly run: RunInKernel) {
    const state = h("span", { class: "state" }, this.stateIcon.el, this.state);
    const numbers = h("span", { class: "numbers" }, this.progress, this.rate, this.left);
    this.head = button(
      { class: "head" },
      h("span", { class: "line" }, this.name, state),
      this.bar,
      numbers,
      this.sentence,
      this.evidence,
    );
    this.head.addEventListener("click", () => this.toggle());
    this.apply.addEventListener("click", () => this.applyIt());
    this.details.id = randomName();
    setAttribute(this.head, "aria-controls", this.details.id);
    this.el = h("li", { class: "run" }, this.head, this.apply, this.details);
    this.el.dataset.run = String(run.number);
    this.show(run.isOpen);
  }

  dispose(): void {
    this.view?.dispose();
    this.el.remove();
  }

  update(row: Row): void {
    const [shape, word] = stateOf(row);
    setAttribute(this.el, "data-state", row.state);
    setAttribute(this.el, "data-severity", row.severity);
    this.stateIcon.show(shape);
    setText(this.state, word);
    setText(this.name, nameOf(row));
    setTitle(this.name, isolatedNames(row.title));
    this.run.variable = row.variable;
    setPart(this.bar, "--fill", row.total ? row.done / row.total : 0);
    setClass(this.bar, "unknown", row.total === null);
    setText(this.progress, progressOf(row));
    setText(this.rate, row.state === "running" ? rateOf(row) : "");
    setText(this.left, row.state === "running" ? leftOf(row) : "");
    setText(this.sentence, unbroken(row.sentence));
    setHidden(this.sentence, row.sentence === "");
    setText(this.evidence, unbroken(row.evidence));
    setHidden(this.evidence, row.evidence === "");
    this.suggestion = row.suggestion;
    setText(this.apply, row.suggestion === null ? "" : applyWords(row.suggestion, null));
    this.showApply();
  }

  private applyIt(): void {
    if (this.suggestion !== null) {
      const { stage, knob, value } = this.suggestion;
      this.run.session.set(stage, knob, value);
    }
  }

  /** Where the panel is open, its verdict has the button. */
  private showApply(): void {
    setHidden(this.apply, this.suggestion === null || this.view !== undefined);
  }

  /** Open the panel, and give the entry the focus. */
  reveal(): void {
    this.show(true);
    this.el.scrollIntoView({ block: "nearest" });
    this.head.focus();
  }

  private toggle(): void {
    this.show(this.view === undefined);
  }

  private show(open: boolean): void {
    this.run.isOpen = open;
    setAttribute(this.head, "aria-expanded", String(open));
    setHidden(this.details, !open);
    if (!open) {
      this.view?.dispose();
      this.view = undefined;
    } else if (this.view === undefined) {
      this.view = new View(this.run.session, this.run.sections);
      this.details.append(this.view.el);
    }
    this.showApply();
  }
}
