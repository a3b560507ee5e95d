/** Small pictures in a row: shares of time, and a count against its bound. */

import type { Shares } from "@nbpipe/protocol";
import { h, setAttribute, setClass, setPart, setText, setTitle } from "./dom";
import { formatShare } from "./format";

export type Part = keyof Shares;

export const PARTS: readonly Part[] = ["busy", "starved", "blocked", "waiting"];

/** What each part is called, in order: in the training loop, busy is training. */
export type Words = ReadonlyMap<Part, string>;

const OF_A_STAGE: Words = new Map(PARTS.map((part) => [part, part]));

/** One bar of four parts, each with a colour and a hatch of its own; beside it the largest in words. */
export class SharesBar {
  readonly el: HTMLElement;
  private readonly bar: HTMLElement;
  private readonly parts: readonly HTMLElement[];
  private readonly text = h("span", { class: "sub", "data-field": "shares" });

  constructor(private readonly words: Words = OF_A_STAGE) {
    this.parts = PARTS.map((part) => h("i", { class: `part ${part}` }));
    this.bar = h("div", { class: "shares", role: "img" }, ...this.parts);
    this.el = h("div", { class: "cell time" }, this.bar, this.text);
  }

  /** In a pause, what waits is paused. */
  update(shares: Shares, isPaused: boolean): void {
    PARTS.forEach((part, place) => {
      const node = this.parts[place];
      if (node !== undefined) {
        setPart(node, "width", shares[part]);
      }
    });
    const all = [...this.words.keys()].map((part) => this.say(part, shares[part], isPaused));
    setTitle(this.bar, all.join(", "));
    setAttribute(this.bar, "aria-label", all.join(", "));
    const largest = PARTS.reduce((most, part) => (shares[part] > shares[most] ? part : most));
    const some = shares[largest] >= 0.005;
    setText(this.text, some ? this.say(largest, shares[largest], isPaused) : "–");
  }

  private say(part: Part, share: number, isPaused: boolean): string {
    const word = part === "waiting" && isPaused ? "paused" : this.words.get(part);
    return `${word ?? part} ${formatShare(share)}`;
  }
}

/** A number and its bound of more letters are written small, for others stand beside them. */
const LONG = 5;

/** "3 / 14" over a thin bar. */
export class Meter {
  readonly el: HTMLElement;
  private readonly text: HTMLElement;
  private readonly bar = h("div", { class: "meter" });

  constructor(field: string, caption: string) {
    this.text = h("div", { class: "value", "data-field": field });
    const named = { role: "meter", "aria-label": caption, "aria-valuemin": "0" };
    this.el = h("div", { class: `cell ${field}`, ...named }, this.text, this.bar);
  }

  /** Leave the place empty: there is nothing to measure here. */
  setBlank(blank: boolean): void {
    setClass(this.el, "blank", blank);
  }

  update(now: number, most: number, said: string): void {
    const brief = `${now}/${most}`;
    const isLong = brief.length > LONG;
    setText(this.text, isLong ? brief : `${now} / ${most}`);
    setClass(this.text, "long", isLong);
    setPart(this.bar, "--fill", most > 0 ? now / most : 0);
    setTitle(this.el, said);
    setAttribute(this.el, "aria-valuemax", String(Math.max(most, now)));
    setAttribute(this.el, "aria-valuenow", String(now));
    setAttribute(this.el, "aria-valuetext", said);
  }
}
