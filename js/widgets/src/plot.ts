/** Options of the uPlot chart: axes, series, and the marks of knob changes. */

import type { Change } from "@nbpipe/protocol";
import type uPlot from "uplot";
import { formatMoment, formatTick, isolated } from "./format";
import { type Line, unitsOf } from "./lines";

export const HEIGHT = 196;

/** So much time is shown at first, as soon as what there was takes more, the next; then all. */
const SPANS_S: readonly number[] = [15, 30, 60];
/** At most so much. */
const MOST_S = 600;

/** Half of the label of a moment: the last one may stand at the right end [px]. */
const HALF_TIME = 28;

/** Turns of a knob so close to one another are one: a slider was dragged. */
const ONE_TURN_S = 1;

/** Colours as the page has them now. */
export interface Colours {
  readonly text: string;
  readonly grid: string;
  readonly mark: string;
  readonly lines: readonly string[];
}

export interface Source {
  colours(): Colours;
  changes(): readonly Change[];
  onCursor(place: number | null, left: number): void;
}

export function optionsOf(lines: readonly Line[], width: number, source: Source): uPlot.Options {
  const units = unitsOf(lines).slice(0, 2);
  return {
    width,
    height: HEIGHT,
    padding: [24, units.length > 1 ? 4 : HALF_TIME, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false, setScale: false } },
    scales: Object.fromEntries([
      ["x", { time: true, range: spanOf }],
      ...units.map((unit) => [unit, { range: rateSpan }]),
    ]),
    axes: [timeAxis(source), ...units.map((unit, place) => rateAxis(unit, place, source))],
    series: [
      {},
      ...lines.map((line, place) => ({
        label: line.label,
        scale: units.includes(line.unit) ? line.unit : (units[0] ?? "items"),
        width: line.width,
        dash: [...line.dash],
        stroke: () => source.colours().lines[place] ?? "gray",
        points: { show: false },
      })),
    ],
    hooks: {
      draw: [(plot: uPlot) => drawMarks(plot, source)],
      setCursor: [
        (plot: uPlot) => source.onCursor(plot.cursor.idx ?? null, plot.cursor.left ?? -1),
      ],
    },
  };
}

/** From when to when is shown, of times from `first` to `last`. */
export function spanOf(
  _plot: unknown,
  first: number | null,
  last: number | null,
): [number, number] {
  const end = last ?? 0;
  const known_s = end - (first ?? end);
  return [end - Math.min(MOST_S, SPANS_S.find((span_s) => known_s <= span_s) ?? known_s), end];
}

function rateSpan(
  plot: uPlot,
  _least: number | null,
  most: number | null,
  scale: string,
): [number, number] {
  const shown = plot.series.flatMap((one, place) =>
    one.show && one.scale === scale ? [plot.data[place] ?? []] : [],
  );
  const top = Math.max(0, ...shown.map(settledTop)) || most;
  return [0, top ? top * 1.08 : 1];
}

/**
 * The highest of some rates, 0 without one. What comes first, and first behind a gap, is left out:
 * it is the rate at which buffers were filled, beside which all that lasts would look alike.
 */
export function settledTop(rates: ArrayLike<number | null | undefined>): number {
  let top = 0;
  for (let place = 1; place < rates.length; place += 1) {
    const before = rates[place - 1] ?? null;
    top = Math.max(top, before === null ? 0 : (rates[place] ?? 0));
  }
  return top;
}

/** Knob changes as they are marked: those of one drag are one, from the first value to the last. */
export function turnsOf(changes: readonly Change[]): Change[] {
  const turns: Change[] = [];
  for (const change of changes) {
    const last = turns.findLast((turn) => turn.knob === change.knob);
    if (last !== undefined && change.when_s - last.when_s < ONE_TURN_S) {
      turns.splice(turns.indexOf(last), 1);
      turns.push({ ...change, old: last.old });
    } else {
      turns.push(change);
    }
  }
  return turns.filter((turn) => turn.old !== turn.new);
}

function font(): string {
  return "11px system-ui, sans-serif";
}

function timeAxis(source: Source): uPlot.Axis {
  return {
    stroke: () => source.colours().text,
    font: font(),
    size: 24,
    gap: 4,
    space: 90,
    grid: { show: false },
    ticks: { stroke: () => source.colours().grid, width: 1, size: 4 },
    values: (_plot, splits) => splits.map(formatMoment),
  };
}

function rateAxis(unit: string, place: number, source: Source): uPlot.Axis {
  return {
    scale: unit,
    side: place === 0 ? 3 : 1,
    stroke: () => source.colours().text,
    font: font(),
    size: place === 0 ? 52 : 62,
    gap: 4,
    space: 34,
    grid: { show: place === 0, stroke: () => source.colours().grid, width: 1 },
    ticks: { show: false },
    values: (_plot, splits) => splits.map(formatTick),
  };
}

/** Vertical lines where knobs were turned; labels where there is room for them. */
function drawMarks(plot: uPlot, source: Source): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const { mark } = source.colours();
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = mark;
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  let free = bbox.left + bbox.width;
  for (const change of turnsOf(source.changes()).reverse()) {
    const x = Math.round(plot.valToPos(change.when_s, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) {
      continue;
    }
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    free = label(ctx, change, x, bbox, free, ratio);
  }
  ctx.restore();
}

/** Write the label of a mark left of `free`; returns what is free then. */
function label(
  ctx: CanvasRenderingContext2D,
  change: Change,
  x: number,
  bbox: uPlot.BBox,
  free: number,
  ratio: number,
): number {
  const text = `${isolated(change.knob)} ${change.old} → ${change.new}`;
  const width = ctx.measureText(text).width;
  const left = Math.min(x - 2 * ratio, bbox.left + bbox.width - width);
  if (left + width + 8 * ratio > free && free < bbox.left + bbox.width) {
    return free;
  }
  ctx.fillText(text, left, bbox.top - 3 * ratio);
  return left;
}
