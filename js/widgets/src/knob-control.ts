/** A slider and a number for one knob; what was asked for stays shown until it is answered. */

import type { Knob } from "@nbpipe/protocol";
import {
  h,
  setAttribute,
  setClass,
  setDisabled,
  setPart,
  setText,
  setTitle,
  unshortened,
} from "./dom";
import { formatCount } from "./format";
import { stepped, suitedTop } from "./scale";
import type { Session } from "./session";

/** While a slider is dragged, a value is sent no oftener than this. */
const DRAG_MS = 100;

/** In a number, these move the caret. */
const CARET_KEYS = new Set(["ArrowLeft", "ArrowRight", "Home", "End"]);

export class KnobControl {
  readonly el: HTMLElement;
  private readonly range: HTMLInputElement;
  private readonly number: HTMLInputElement;
  private readonly error = h("span", { class: "nbpipe-knob-error", role: "alert" });
  private readonly ending = new AbortController();
  private dragging = false;
  private typing = false;
  private top: number | undefined;
  private sent_ms = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly session: Session,
    private readonly stage: string,
    private knob: Knob,
  ) {
    this.range = this.input("range");
    this.number = this.input("number");
    this.number.inputMode = "numeric";
    const label = h("span", { class: "caption", "aria-hidden": "true" }, knob.name);
    this.el = h("div", { class: "knob" }, label, this.range, this.number, this.error);
    this.el.dataset.name = knob.name;
    this.hearRange();
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
    if (!this.dragging) {
      this.top = suitedTop(knob, value, this.top);
      this.showRange(value);
    }
    if (!this.typing && !this.dragging) {
      this.showNumber(value);
    }
    setDisabled(this.range, !enabled);
    setDisabled(this.number, !enabled);
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

  private input(type: "range" | "number"): HTMLInputElement {
    const input = unshortened(h("input", { type, step: "1", autocomplete: "off" }));
    input.dataset.knob = this.knob.name;
    input.setAttribute("aria-label", `${this.stage} ${this.knob.name}`);
    return input;
  }

  private showRange(value: number): void {
    const { minimum } = this.knob;
    const top = Math.max(this.top ?? value, minimum + 1);
    setAttribute(this.range, "min", String(minimum));
    setAttribute(this.range, "max", String(top));
    if (this.range.value !== String(value)) {
      this.range.value = String(value);
    }
    setPart(this.el, "--fill", (value - minimum) / (top - minimum));
  }

  private showNumber(value: number): void {
    setAttribute(this.number, "min", String(this.knob.minimum));
    setAttribute(this.number, "max", String(this.knob.maximum));
    if (this.number.value !== String(value)) {
      this.number.value = String(value);
    }
  }

  private set(value: number): void {
    clearTimeout(this.timer);
    this.sent_ms = Date.now();
    this.session.set(this.stage, this.knob.name, value);
  }

  private hearRange(): void {
    const { signal } = this.ending;
    const end = () => this.endDrag();
    this.range.addEventListener("pointerdown", () => {
      this.dragging = true;
    });
    document.addEventListener("pointerup", end, { signal });
    document.addEventListener("pointercancel", end, { signal });
    this.range.addEventListener("input", () => this.drag());
    this.range.addEventListener("change", end);
    this.range.addEventListener("keydown", (event) => this.step(event));
  }

  private drag(): void {
    const value = this.range.valueAsNumber;
    this.showRange(value);
    this.showNumber(value);
    clearTimeout(this.timer);
    const wait_ms = this.dragging ? this.sent_ms + DRAG_MS - Date.now() : 0;
    if (wait_ms <= 0) {
      this.set(value);
    } else {
      this.timer = setTimeout(() => this.set(value), wait_ms);
    }
  }

  private endDrag(): void {
    if (this.dragging) {
      this.dragging = false;
      if (this.range.valueAsNumber !== this.shown()) {
        this.set(this.range.valueAsNumber);
      }
    }
  }

  private hearNumber(): void {
    this.number.addEventListener("input", () => {
      this.typing = true;
    });
    this.number.addEventListener("change", () => this.commit());
    this.number.addEventListener("blur", () => this.commit());
    this.number.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        this.commit();
      } else if (!CARET_KEYS.has(event.key)) {
        this.step(event);
      }
    });
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
      this.set(value);
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

  private step(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      this.typing = false;
      this.session.knobs.dismiss(this.stage, this.knob.name);
      this.update(this.knob, true);
      event.stopPropagation();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const value = stepped(this.knob, this.shown(), event.key, this.top ?? this.knob.maximum);
    if (value !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      this.typing = false;
      if (value !== this.shown()) {
        this.set(value);
      }
    }
  }
}
