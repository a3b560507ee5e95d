/** Chart: throughput of each stage over the last minutes, drawn only while it can be seen. */

import { isLive, type Snapshot } from "@nbpipe/protocol";
import uPlot from "uplot";
import { button, h, setAttribute, setClass, setHidden, setText, svg } from "./dom";
import { formatAmount, formatMoment, formatName } from "./format";
import { type Line, linesOf, unitsOf } from "./lines";
import { type Colours, HEIGHT, optionsOf } from "./plot";
import { keep, type Sections } from "./sections";
import type { Session } from "./session";

/** The tip stands so far beside the cursor [px]. */
const TIP_GAP = 10;

export class Chart {
  readonly el = h("details", { class: "chart" });
  private readonly units = h("div", { class: "units sub" });
  private readonly canvas = h("div", { class: "canvas" });
  private readonly empty = h("p", { class: "empty sub" });
  private readonly tip = h("div", { class: "tip", "aria-hidden": "true" });
  private readonly legend = h("div", { class: "legend" });
  private readonly sizes: ResizeObserver | undefined;
  private plot: uPlot | undefined;
  private lines: readonly Line[] = [];
  private colours: Colours = { text: "gray", grid: "gray", mark: "gray", lines: [] };
  private drawn = -1;
  private key = "";

  constructor(
    private readonly session: Session,
    private readonly sections: Sections,
  ) {
    const area = h("div", { class: "area" }, this.units, this.canvas, this.empty, this.tip);
    this.el.append(h("summary", {}, "Throughput"), area, this.legend);
    keep(this.el, sections, "chart", true);
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
    setHidden(this.el, this.session.link === "none" && history.time_s.length < 2);
    if (!this.el.open || this.el.hidden || snapshot === null) {
      return;
    }
    this.rebuild(snapshot);
    if (this.drawn === history.version) {
      return;
    }
    const few = history.time_s.length < 2;
    setHidden(this.empty, !few);
    const waits = isLive(snapshot) || snapshot.state === "ready";
    setText(this.empty, waits ? "No history yet." : "The epoch was too short for a chart.");
    if (!few) {
      this.draw();
    }
  }

  private draw(): void {
    const { history } = this.session;
    const width = this.canvas.clientWidth;
    if (width === 0) {
      return; // not laid out yet
    }
    this.drawn = history.version;
    this.colours = this.readColours();
    const rates = this.lines.map((line) => [...history.rates(line.address)]);
    const data = [[...history.time_s], ...rates] as uPlot.AlignedData;
    if (this.plot !== undefined) {
      this.plot.setData(data);
      return;
    }
    const source = {
      colours: () => this.colours,
      changes: () => this.session.history.changes,
      onCursor: (place: number | null, left: number) => this.showTip(place, left),
    };
    this.plot = new uPlot(optionsOf(this.lines, width, source), data, this.canvas);
    this.lines.forEach((line, place) => {
      if (!this.isShown(line)) {
        this.plot?.setSeries(place + 1, { show: false });
      }
    });
  }

  /** Begin again where the stages are others than before. */
  private rebuild(snapshot: Snapshot): void {
    const lines = linesOf(snapshot);
    const key = JSON.stringify(lines);
    if (key !== this.key) {
      this.key = key;
      this.lines = lines;
      this.plot?.destroy();
      this.plot = undefined;
      this.drawn = -1;
      this.legend.replaceChildren(...lines.map((line, place) => this.legendItem(line, place)));
      const units = unitsOf(lines).slice(0, 2);
      this.units.replaceChildren(...units.map((unit) => h("span", {}, `${unit}/s`)));
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

  private legendItem(line: Line, place: number): HTMLElement {
    const stroke = svg("line", { x1: "0", y1: "5", x2: "26", y2: "5" });
    stroke.setAttribute("stroke-dasharray", line.dash.join(" "));
    stroke.setAttribute("stroke-width", String(line.width + 0.5));
    const sample = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, stroke);
    const item = button(
      { class: `series ${line.tint}` },
      sample,
      h("bdi", {}, formatName(line.label)),
    );
    item.title = `show or hide ${line.label}`;
    setAttribute(item, "aria-pressed", String(this.isShown(line)));
    item.addEventListener("click", () => {
      const shown = !this.isShown(line);
      this.sections.set(lineKey(line), shown);
      setAttribute(item, "aria-pressed", String(shown));
      this.plot?.setSeries(place + 1, { show: shown });
    });
    return item;
  }

  private isShown(line: Line): boolean {
    return this.sections.isOpen(lineKey(line), true);
  }

  private readColours(): Colours {
    const colour = (node: Element | null) => (node ? getComputedStyle(node).color : "gray");
    const units = getComputedStyle(this.units);
    return {
      text: units.color,
      grid: units.borderBottomColor,
      mark: colour(this.tip),
      lines: [...this.legend.children].map(colour),
    };
  }

  private showTip(place: number | null, left: number): void {
    const { history } = this.session;
    const when_s = place === null ? undefined : history.time_s[place];
    setClass(this.tip, "shown", when_s !== undefined && left >= 0);
    if (place === null || when_s === undefined || left < 0) {
      return;
    }
    const rows = this.lines.filter((line) => this.isShown(line));
    this.tip.replaceChildren(
      h("b", {}, formatMoment(when_s)),
      ...rows.map((line) => tipRow(line, history.rates(line.address)[place] ?? null)),
    );
    const at = left + (this.plot?.over.offsetLeft ?? 0);
    const most = this.canvas.clientWidth - this.tip.offsetWidth;
    const right = at + TIP_GAP;
    const beside = right <= most ? right : at - TIP_GAP - this.tip.offsetWidth;
    this.tip.style.left = `${Math.round(Math.min(most, Math.max(0, beside)))}px`;
  }
}

function tipRow(line: Line, rate: number | null): HTMLElement {
  const value = rate === null ? "–" : `${formatAmount(rate)} ${line.unit}/s`;
  return h("div", { class: line.tint }, h("bdi", {}, formatName(line.label)), h("span", {}, value));
}

function lineKey(line: Line): string {
  return `line of ${line.address}`;
}
