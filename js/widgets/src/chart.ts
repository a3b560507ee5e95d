/** Chart: throughput of each stage over the last minutes, on one scale, drawn only while it is open. */

import { type Change, isLive, type Snapshot } from "@nbpipe/protocol";
import uPlot from "uplot";
import { h, setAttribute, setClass, setHidden, setText } from "./dom";
import { formatAmount, formatMoment, formatName } from "./format";
import { type Line, type Look, linesOf } from "./lines";
import { type Colours, HEIGHT, optionsOf, settled, turnsAt } from "./plot";
import { keep, type Sections } from "./sections";
import type { Session } from "./session";

/** It opens by itself when there is so much of it. */
const ENOUGH_S = 10;

/** The tip stands so far beside the cursor [px], and has at most so many lines. */
const TIP_GAP = 10;
const TIP_LINES = 10;

const LOOKS: readonly Look[] = ["other", "limit", "loop"];

export class Chart {
  readonly el = h("details", { class: "chart" });
  private readonly canvas = h("div", { class: "canvas", role: "img" });
  private readonly empty = h("p", { class: "empty sub" });
  private readonly tip = h("div", { class: "tip", "aria-hidden": "true" });
  /** Hold the colours that the page gives to lines. */
  private readonly inks = LOOKS.map((look) => h("i", { class: `ink ${look}` }));
  private readonly sizes: ResizeObserver | undefined;
  private plot: uPlot | undefined;
  private lines: readonly Line[] = [];
  private colours: Colours | undefined;
  private drawn = -1;
  private key = "";

  constructor(
    private readonly session: Session,
    private readonly sections: Sections,
  ) {
    const area = h("div", { class: "area" }, this.canvas, this.empty, this.tip, ...this.inks);
    const title = h("summary", {}, "Throughput ", h("span", { class: "sub" }, "items/s"));
    this.el.append(title, area);
    keep(this.el, sections, "chart", false);
    this.el.addEventListener("toggle", () => this.update());
    if (typeof ResizeObserver === "function") {
      this.sizes = new ResizeObserver(() => this.resize());
      this.sizes.observe(area);
    }
  }

  dispose(): void {
    this.sizes?.disconnect();
    this.plot?.destroy();
    this.plot = undefined;
  }

  update(): void {
    const { snapshot, history } = this.session;
    const known = history.time_s.length;
    const known_s = (history.time_s.at(-1) ?? 0) - (history.time_s[0] ?? 0);
    this.el.open = this.sections.isOpen("chart", known_s >= ENOUGH_S);
    setHidden(this.el, this.session.link === "none" && known < 2);
    if (!this.el.open || this.el.hidden || snapshot === null) {
      return;
    }
    const lines = inOrder(linesOf(snapshot));
    this.rebuild(lines);
    setHidden(this.empty, known >= 2);
    setHidden(this.canvas, known < 2);
    const waits = isLive(snapshot) || snapshot.state === "ready";
    setText(this.empty, waits ? "No history yet." : "The epoch was too short for a chart.");
    if (this.drawn !== history.version && known >= 2) {
      this.draw(snapshot);
    }
  }

  private draw(snapshot: Snapshot): void {
    const { history } = this.session;
    const width = this.canvas.clientWidth;
    if (width === 0) {
      return; // not laid out yet
    }
    this.drawn = history.version;
    this.colours = this.readColours();
    setAttribute(this.canvas, "aria-label", said(snapshot));
    const rates = this.lines.map(({ address, items }) => settled(history.rates(address), items));
    const data = [[...history.time_s], ...rates] as uPlot.AlignedData;
    if (this.plot !== undefined) {
      this.plot.setData(data);
      return;
    }
    const source = {
      colours: () => this.colours ?? this.readColours(),
      changes: () => this.session.history.changes,
      onCursor: (place: number | null, left: number) => this.showTip(place, left),
    };
    this.plot = new uPlot(optionsOf(this.lines, width, source), data, this.canvas);
  }

  /** Begin again where the stages are others than before, or another one limits. */
  private rebuild(lines: readonly Line[]): void {
    const key = JSON.stringify(lines.map(({ address, look }) => [address, look]));
    this.lines = lines;
    if (key !== this.key) {
      this.key = key;
      this.plot?.destroy();
      this.plot = undefined;
      this.drawn = -1;
    }
  }

  private resize(): void {
    const width = this.canvas.clientWidth;
    if (this.plot === undefined) {
      this.update();
    } else if (width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: HEIGHT });
    }
  }

  private readColours(): Colours {
    const [other = "gray", limit = "gray", loop = "gray"] = this.inks.map(
      (ink) => getComputedStyle(ink).color,
    );
    const { color: text, borderBottomColor: grid } = getComputedStyle(this.canvas);
    return { text, grid, other, limit, loop };
  }

  private showTip(place: number | null, left: number): void {
    const { history } = this.session;
    const when_s = place === null ? undefined : history.time_s[place];
    setClass(this.tip, "shown", when_s !== undefined && left >= 0);
    if (place === null || when_s === undefined || left < 0) {
      return;
    }
    const rows = this.lines.slice(-TIP_LINES).reverse();
    this.tip.replaceChildren(
      h("b", {}, formatMoment(when_s)),
      ...rows.map((line) => tipRow(line, history.rates(line.address)[place] ?? null)),
      ...(this.plot ? turnsAt(this.plot, history.changes, left).map(tipTurn) : []),
    );
    const at = left + (this.plot?.over.offsetLeft ?? 0);
    const most = this.canvas.clientWidth - this.tip.offsetWidth;
    const right = at + TIP_GAP;
    const beside = right <= most ? right : at - TIP_GAP - this.tip.offsetWidth;
    this.tip.style.left = `${Math.round(Math.min(most, Math.max(0, beside)))}px`;
  }
}

/** Those that stand out come last: they are drawn above the others. */
function inOrder(lines: readonly Line[]): Line[] {
  return [...lines].sort((left, right) => LOOKS.indexOf(left.look) - LOOKS.indexOf(right.look));
}

function tipRow(line: Line, rate: number | null): HTMLElement {
  const value = rate === null ? "–" : `${formatAmount(rate)} ${line.unit}/s`;
  const name = h("bdi", {}, formatName(line.label));
  return h("div", { class: `ink ${line.look}` }, name, h("span", {}, value));
}

/** A change of a knob at the cursor: what, by whom, why. */
function tipTurn({ knob, old, new: now, by, why, taken_back }: Change): HTMLElement {
  const turned = h("b", {}, h("bdi", {}, knob), ` ${old} → ${now}`);
  const said = `by ${by}${taken_back ? ", taken back" : ""}${why === "" ? "" : `: ${why}`}`;
  return h("p", {}, turned, " ", said);
}

/** The rates now, in words. */
function said({ stages, items_per_s, unit }: Snapshot): string {
  const rates = stages.map(
    (one) => `${one.address} ${formatAmount(one.items_per_s)} ${one.unit}/s`,
  );
  const loop = `training loop ${formatAmount(items_per_s)} ${unit}/s`;
  return `throughput over time; now ${[...rates, loop].join(", ")}`;
}
