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
  private isPaused = false;

  constructor(private readonly words: Words = OF_A_STAGE) {
    this.parts = PARTS.map((part) => h("i", { class: `part ${part}` }));
    this.bar = h("div", { class: "shares", role: "img" }, ...this.parts);
    this.el = h("div", { class: "cell time" }, this.bar, this.text);
  }

  /** In a pause, what waits is paused. */
  update(shares: Shares, isPaused: boolean): void {
    this.isPaused = isPaused;
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
    const word = part === "waiting" && this.isPaused ? "paused" : this.words.get(part);
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
    const label = h("span", { class: "caption", "aria-hidden": "true" }, caption);
    const named = { role: "meter", "aria-label": caption, "aria-valuemin": "0" };
    this.el = h("div", { class: `cell ${field}`, ...named }, label, this.text, this.bar);
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

const WIDTH = 60;
const HEIGHT = 20;
/** A rate far below one item a second does not fill the picture. */
const LEAST_TOP = 1;

type Point = readonly [x: number, rate: number];

/** A rate over the last minute; where nothing ran, a gap. */
export class Spark {
  readonly el: SVGSVGElement;
  private readonly line = svg("path", { class: "stroke", fill: "none" });
  private readonly area = svg("path", { class: "fill" });

  constructor() {
    const box = `0 0 ${WIDTH} ${HEIGHT}`;
    const attributes = { class: "cell spark sparkline", viewBox: box, preserveAspectRatio: "none" };
    this.el = svg("svg", { ...attributes, "aria-hidden": "true" }, this.area, this.line);
  }

  update(time_s: readonly number[], rates: readonly (number | null)[]): void {
    const runs = runsOf(time_s, rates);
    const top = Math.max(LEAST_TOP, ...runs.flat().map(([, rate]) => rate));
    const drawn = runs.map((run) =>
      run.map(([x, rate]) => `${round(x)},${round(HEIGHT - 1 - (rate / top) * (HEIGHT - 2))}`),
    );
    const ends = runs.map((run) => [run[0], run.at(-1)].map((end) => round(end?.[0] ?? 0)));
    const under = drawn.map((spots, at) => {
      const [left, right] = ends[at] ?? [];
      return `M${left},${HEIGHT} ${spots.join(" ")} ${right},${HEIGHT}Z`;
    });
    setAttribute(this.line, "d", drawn.map((spots) => `M${spots.join(" ")}`).join(""));
    setAttribute(this.area, "d", under.join(""));
  }
}

/** The last minute, oldest first, in parts between which nothing ran. */
function runsOf(time_s: readonly number[], rates: readonly (number | null)[]): Point[][] {
  const now_s = time_s.at(-1) ?? 0;
  const runs: Point[][] = [[]];
  for (let place = time_s.length - 1; place >= 0; place -= 1) {
    const age_s = now_s - (time_s[place] ?? 0);
    const rate = rates[place] ?? null;
    if (rate === null) {
      runs.push([]);
    } else {
      runs.at(-1)?.push([WIDTH - age_s, rate]);
    }
    if (age_s >= WIDTH) {
      break;
    }
  }
  return runs.filter((run) => run.length > 0).map((run) => run.reverse());
}

function round(number: number): number {
  return Math.round(number * 10) / 10;
}
