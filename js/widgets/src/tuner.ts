/** TunerLine: what the tuner does now, in a word, what it has reached, and what it leaves alone. */

import type { Snapshot, Target, Tuned, Tuner } from "@nbpipe/protocol";
import { button, h, setDisabled, setHidden, setText, setTitle } from "./dom";
import { formatAmount } from "./format";
import { OpButton } from "./op-button";
import type { Session } from "./session";

export class TunerLine {
  readonly el = h("section", { class: "tuner", "aria-label": "autotune" });
  private readonly word = h("span", { role: "status", "data-field": "tuner" });
  private readonly effect = h("span", { class: "effect", "data-field": "tuned" });
  private readonly leftAlone = h("span", { class: "left-alone" });
  private readonly buttons: readonly OpButton[];
  private shownKnobs = "";

  constructor(private readonly session: Session) {
    this.buttons = [new OpButton(session, "autotune_undo"), new OpButton(session, "autotune_stop")];
    const says = h("span", { class: "says" }, h("b", {}, "Auto: ", this.word), this.effect);
    const acts = h("span", { class: "ends" }, ...this.buttons.map(({ el }) => el));
    this.el.append(says, this.leftAlone, acts);
    this.el.hidden = true;
  }

  update(snapshot: Snapshot, enabled: boolean): void {
    const { tuner, unit } = snapshot;
    const canUndo = snapshot.actions.includes("autotune_undo");
    setHidden(this.el, tuner === null || !(tuner.active || canUndo || isFailure(tuner)));
    if (tuner === null) {
      return;
    }
    setText(this.word, wordOf(tuner));
    setTitle(this.word, tuner.state);
    setText(this.effect, effectOf(this.session.tuned, unit));
    const [undo, stop] = this.buttons;
    undo?.update(snapshot, enabled, "restore the knobs that Auto turned, and switch it off");
    stop?.update(snapshot, enabled, "switch Auto off; the knobs stay as they are");
    this.updateLeftAlone(tuner.active ? tuner.left_alone : [], enabled);
  }

  private updateLeftAlone(knobs: readonly Target[], enabled: boolean): void {
    const key = JSON.stringify(knobs.map(({ stage, knob }) => [stage, knob]));
    if (key !== this.shownKnobs) {
      this.shownKnobs = key;
      this.leftAlone.replaceChildren(...knobs.map((one) => this.yours(one)));
    }
    for (const back of this.leftAlone.querySelectorAll("button")) {
      setDisabled(back, !enabled || this.session.isAsked("give_back"));
    }
  }

  /** A knob that a person turned, and a button that gives it back. */
  private yours({ stage, knob }: Target): HTMLElement {
    const back = button({ class: "give-back" }, "Give it back");
    back.addEventListener("click", () => this.session.giveBack(stage, knob));
    setTitle(back, `let Auto turn ${stage}.${knob} again`);
    const name = h("bdi", {}, `${stage}.${knob}`);
    return h("span", { class: "yours" }, h("span", {}, name, " is yours"), back);
  }
}

/** What it does now, without the reason and without the knobs that it leaves alone. */
function wordOf({ state }: Tuner): string {
  return state.split(/[;:]/, 1)[0] ?? "";
}

function isFailure({ state }: Tuner): boolean {
  return state.startsWith("failed");
}

/** How many changes it made, and the rate before the first and after the last of them. */
function effectOf(tuned: readonly Tuned[], unit: string): string {
  const turns = tuned.filter(({ knob, taken_back }) => knob !== "" && !taken_back);
  const before = tuned.find(({ knob, before }) => knob !== "" && before !== null)?.before ?? null;
  const after = tuned.findLast(({ after }) => after !== null)?.after ?? null;
  const count = turns.length === 1 ? "1 change" : `${turns.length} changes`;
  return turns.length === 0 || before === null || after === null
    ? count
    : `${count} · ${formatAmount(before)} → ${formatAmount(after)} ${unit}/s`;
}
