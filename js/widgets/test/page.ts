/** A page with panels in it, and hands to use them. */

import { vi } from "vitest";
import panel from "../src/index";
import type { MockModel } from "./mock-model";

/** A panel in the page. */
export class Shown {
  readonly el = document.createElement("div");
  readonly close: () => void;

  constructor(readonly model: MockModel) {
    document.body.append(this.el);
    this.close = panel.render({ model, el: this.el });
  }

  get root(): HTMLElement {
    return this.one(".nbpipe-panel");
  }

  one<T extends HTMLElement = HTMLElement>(selector: string): T {
    const found = this.el.querySelector<T>(selector);
    if (found === null) {
      throw new Error(`nothing matches ${selector}`);
    }
    return found;
  }

  text(selector: string): string {
    return (this.one(selector).textContent ?? "").replace(/\s+/g, " ").trim();
  }

  stage(address: string): HTMLElement {
    const rows = [...this.el.querySelectorAll<HTMLElement>("[data-stage]")];
    const found = rows.find((row) => row.dataset.stage === address);
    if (found === undefined) {
      throw new Error(`no row of ${address}`);
    }
    return found;
  }

  knob(knob = "concurrency", stage = "decode"): HTMLInputElement {
    const selector = `input[type=number][data-knob=${knob}]`;
    const found = this.stage(stage).querySelector<HTMLInputElement>(selector);
    if (found === null) {
      throw new Error(`no number of ${stage}.${knob}`);
    }
    return found;
  }

  /** The button that steps a stage's concurrency up, or down. */
  step(sign: "+" | "−", stage = "decode"): HTMLButtonElement {
    const steps = [...this.stage(stage).querySelectorAll<HTMLButtonElement>("button.nbp-step")];
    const found = steps.find((button) => button.textContent === sign);
    if (found === undefined) {
      throw new Error(`no ${sign} of ${stage}`);
    }
    return found;
  }

  /** What the refused value was answered with. */
  knobError(stage = "decode"): string {
    return this.stage(stage).querySelector(".nbpipe-knob-error")?.textContent ?? "";
  }
}

/** Let the next frame be drawn. */
export function frame(): void {
  vi.advanceTimersByTime(20);
}

/** Show a panel whose kernel said hello. */
export function show(model: MockModel): Shown {
  panel.initialize({ model });
  const shown = new Shown(model);
  model.hello();
  frame();
  return shown;
}

/** Press a button with the mouse, and hold it for so long. */
export function hold(button: HTMLElement, time_ms = 0): void {
  button.dispatchEvent(new MouseEvent("pointerdown", { bubbles: true, button: 0 }));
  vi.advanceTimersByTime(time_ms);
  window.dispatchEvent(new Event("pointerup"));
}

export function type(input: HTMLInputElement, value: string): void {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

export function press(input: HTMLElement, key: string): void {
  input.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}

const watched = new Map<Element, (onScreen: boolean) => void>();

/** An observer of which elements can be seen, as `scroll` says. */
export class Observer {
  constructor(private readonly callback: (entries: { isIntersecting: boolean }[]) => void) {}

  observe(el: Element): void {
    watched.set(el, (isIntersecting) => this.callback([{ isIntersecting }]));
  }

  disconnect(): void {}
}

/** Scroll a panel into sight, or out of it. */
export function scroll(shown: Shown, onScreen: boolean): void {
  watched.get(shown.root)?.(onScreen);
}

export function setVisibility(state: DocumentVisibilityState): void {
  vi.spyOn(document, "visibilityState", "get").mockReturnValue(state);
  document.dispatchEvent(new Event("visibilitychange"));
}
