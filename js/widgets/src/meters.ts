/** Small pictures in a row: shares of time, a queue's fill, the rate over the last minute. */

import type { Shares } from "@nbpipe/protocol";
import { h, setAttribute, setClass, setPart, setText, setTitle, svg } from "./dom";
import { formatShare } from "./format";

type Part = keyof Shares;

const PARTS: readonly Part[] = ["busy", "starved", "blocked", "waiting"];

/** What each part is called, in order: in the training loop, busy is training. */
export type Words = ReadonlyMap<Part, string>;

const OF_A_STAGE: Words = new Map(PARTS.map((part) => [part, part]));

/** One bar of four parts, each with a colour and a hatch of its own, and said in words. */
export class SharesBar {
  readonly el: HTMLElement;
  private readonly bar: HTMLElement;
  private readonly parts: readonly HTMLElement[];
  private readonly text = h("div", { class: "sub", "data-field": "shares" });

  constructor(private readonly words: Words = OF_A_STAGE) {
    this.parts = PARTS.map((part) => h("i", { class: `part ${part}` }));
    this.bar = h("div", { class: "shares", role: "img" }, ...this.parts);
    this.el = h("div", { class: "cell time" }, this.bar, this.text);
  }

  update(shares: Shares): void {
    PARTS.forEach((part, place) => {
      const node = this.parts[place];
      if (node !== undefined) {
        setPart(node, "width", shares[part]);
      }
    });
    const all = [...this.words.keys()].map((part) => this.say(part, shares[part]));
    setTitle(this.bar, all.join(", "));
    setAttribute(this.bar, "aria-label", all.join(", "));
    const largest = [...PARTS]
      .filter((part) => shares[part] >= 0.005)
      .sort((left, right) => shares[right] - shares[left])
      .slice(0, 2);
    setText(this.text, largest.map((part) => this.say(part, shares[part])).join(" · ") || "–");
  }

  private say(part: Part, share: number): string {
    return `${this.words.get(part) ?? part} ${formatShare(share)}`;
  }
}

/** "3 / 14" over a thin bar. */
export class Meter {
  readonly el: HTMLElement;
  private readonly text: HTMLElement;
  private readonly bar = h("div", { class: "meter" });

  constructor(field: string, caption: string) {
    this.text = h("div", { class: "value", "data-field": field });
    const label = h("span", { class: "caption", "aria-hidden": "true" }, caption);
    this.el = h("div", { class: `cell ${field}` }, label, this.text, this.bar);
  }

  /** Leave the place empty: there is nothing to measure here. */
  setBlank(blank: boolean): void {
    setClass(this.el, "blank", blank);
  }

  update(now: number, most: number, said: string): void {
    setText(this.text, `${now} / ${most}`);
    setPart(this.bar, "--fill", most > 0 ? now / most : 0);
    setTitle(this.el, said);
    setAttribute(this.text, "aria-label", said);
  }
}

const WIDTH = 60;
const HEIGHT = 20;

/** A rate over the last minute. */
export class Spark {
  readonly el: SVGSVGElement;
  private readonly line = svg("polyline", { fill: "none" });
  private readonly area = svg("polygon", {});

  constructor() {
    const box = `0 0 ${WIDTH} ${HEIGHT}`;
    const attributes = { class: "cell spark sparkline", viewBox: box, preserveAspectRatio: "none" };
    this.el = svg("svg", { ...attributes, "aria-hidden": "true" }, this.area, this.line);
  }

  update(time_s: readonly number[], rates: readonly (number | null)[]): void {
    const now = time_s.at(-1) ?? 0;
    const points: [number, number][] = [];
    for (let place = time_s.length - 1; place >= 0; place -= 1) {
      const age_s = now - (time_s[place] ?? 0);
      points.push([WIDTH - age_s, rates[place] ?? 0]);
      if (age_s >= WIDTH) {
        break;
      }
    }
    const top = Math.max(...points.map(([, rate]) => rate), 1e-9);
    const spots = points
      .reverse()
      .map(([x, rate]) => `${round(x)},${round(HEIGHT - 1 - (rate / top) * (HEIGHT - 2))}`);
    const [first] = points;
    setAttribute(this.line, "points", spots.join(" "));
    const base = first ? `${round(first[0])},${HEIGHT} ` : "";
    setAttribute(this.area, "points", first ? `${base}${spots.join(" ")} ${WIDTH},${HEIGHT}` : "");
  }
}

function round(number: number): number {
  return Math.round(number * 10) / 10;
}
