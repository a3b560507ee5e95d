/** A stepper for one knob: less, a number, more. What was asked for stays shown until it is answered. */

import type { Knob } from "@nbpipe/protocol";
import {
  button,
  h,
  setAttribute,
  setClass,
  setDisabled,
  setText,
  setTitle,
  unshortened,
} from "./dom";
import { formatCount } from "./format";
import type { Session } from "./session";

/** A button that is held steps again after so long, and then so often. */
const HELD_MS = 400;
const AGAIN_MS = 80;

/** How far a key steps in the number. */
const STEPS: Readonly<Record<string, number>> = {
  ArrowUp: 1,
  ArrowDown: -1,
  PageUp: 10,
  PageDown: -10,
};

export class KnobControl {
  readonly el: HTMLElement;
  private readonly number: HTMLInputElement;
  private readonly less: HTMLButtonElement;
  private readonly more: HTMLButtonElement;
  private readonly error = h("span", { class: "nbpipe-knob-error", role: "alert" });
  private readonly ending = new AbortController();
  private typing = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly session: Session,
    private readonly stage: string,
    private knob: Knob,
  ) {
    const name = `${stage} ${knob.name}`;
    this.number = unshortened(h("input", { type: "number", step: "1", autocomplete: "off" }));
    this.number.dataset.knob = knob.name;
    this.number.inputMode = "numeric";
    this.number.setAttribute("aria-label", name);
    this.less = this.stepper("−", -1, `${name}, one less`);
    this.more = this.stepper("+", 1, `${name}, one more`);
    const label = h("span", { class: "caption", "aria-hidden": "true" }, knob.name);
    const stepper = h("span", { class: "stepper" }, this.less, this.number, this.more);
    this.el = h("div", { class: "knob" }, label, stepper, this.error);
    this.el.dataset.name = knob.name;
    this.hearNumber();
  }

  dispose(): void {
    this.ending.abort();
    clearTimeout(this.timer);
  }

  update(knob: Knob, enabled: boolean): void {
    this.knob = knob;
    const { pending, error } = this.session.knobs.asked(this.stage, knob.name);
    const value = this.shown();
    if (!this.typing) {
      this.showNumber(value);
    }
    setDisabled(this.number, !enabled);
    setDisabled(this.less, !enabled || value <= knob.minimum);
    setDisabled(this.more, !enabled || value >= knob.maximum);
    setClass(this.el, "pending", pending !== undefined);
    setText(this.error, error);
    const bounds = `${formatCount(knob.minimum)} to ${formatCount(knob.maximum)} ${knob.unit}`;
    setTitle(this.el, `${this.stage}.${knob.name}: ${bounds}, ${knob.default} at first`);
  }

  /** The value to show: what was asked for, else what was answered, else the snapshot's. */
  private shown(): number {
    const { knobs } = this.session;
    const { pending } = knobs.asked(this.stage, this.knob.name);
    return pending ?? knobs.answered(this.stage, this.knob.name) ?? this.knob.value;
  }

  private showNumber(value: number): void {
    setAttribute(this.number, "min", String(this.knob.minimum));
    setAttribute(this.number, "max", String(this.knob.maximum));
    if (this.number.value !== String(value)) {
      this.number.value = String(value);
    }
  }

  /** A button that steps when it is pressed, and again while it is held; a key clicks it. */
  private stepper(sign: string, step: number, label: string): HTMLButtonElement {
    const made = button({ class: "step", tabindex: "-1" }, sign);
    const { signal } = this.ending;
    const release = () => clearTimeout(this.timer);
    made.setAttribute("aria-label", label);
    made.addEventListener("pointerdown", (event) => {
      if (event.button === 0) {
        this.hold(step, HELD_MS);
      }
    });
    made.addEventListener("click", (event) => {
      if (event.detail === 0) {
        this.step(step);
      }
    });
    for (const type of ["pointerup", "pointercancel", "blur"]) {
      window.addEventListener(type, release, { signal });
    }
    return made;
  }

  private hold(step: number, wait_ms: number): void {
    clearTimeout(this.timer);
    this.step(step);
    this.timer = setTimeout(() => this.hold(step, AGAIN_MS), wait_ms);
  }

  private step(by: number): void {
    const { minimum, maximum } = this.knob;
    const value = Math.min(maximum, Math.max(minimum, this.shown() + by));
    this.typing = false;
    if (value === this.shown()) {
      this.showNumber(value);
    } else {
      this.session.set(this.stage, this.knob.name, value);
    }
  }

  private hearNumber(): void {
    this.number.addEventListener("input", () => {
      this.typing = true;
    });
    this.number.addEventListener("change", () => this.commit());
    this.number.addEventListener("blur", () => this.commit());
    this.number.addEventListener("keydown", (event) => this.onKey(event));
  }

  private onKey(event: KeyboardEvent): void {
    const by = STEPS[event.key];
    if (event.key === "Enter") {
      this.commit();
    } else if (event.key === "Escape") {
      this.typing = false;
      this.session.knobs.dismiss(this.stage, this.knob.name);
      this.update(this.knob, true);
      event.stopPropagation();
    } else if (by !== undefined && !(event.ctrlKey || event.metaKey || event.altKey)) {
      event.preventDefault();
      event.stopPropagation();
      this.step(by);
    }
  }

  private commit(): void {
    if (!this.typing) {
      return;
    }
    this.typing = false;
    const text = this.number.value.trim();
    const value = Number(text);
    if (text === "" || value === this.shown()) {
      this.showNumber(this.shown());
    } else if (Number.isSafeInteger(value)) {
      this.session.set(this.stage, this.knob.name, value);
    } else {
      const { name, minimum, maximum, unit } = this.knob;
      const rule = `must be an int in [${minimum}, ${maximum}] ${unit}`;
      this.refuse(`${this.stage}.${name} ${rule}, got ${text}`);
    }
  }

  private refuse(why: string): void {
    this.session.knobs.refuse(this.stage, this.knob.name, why);
    this.update(this.knob, true);
  }
}
