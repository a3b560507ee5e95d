/** Options of the uPlot chart: axes, series, names at the ends of lines, marks of knob changes. */

import type { Change } from "@nbpipe/protocol";
import type uPlot from "uplot";
import { formatMoment, formatName, formatTick, isolated } from "./format";
import type { Line, Look } from "./lines";

export const HEIGHT = 148;

/** At most so much is shown. */
const MOST_S = 600;

/** Turns of a knob so close to one another are one: a button was held. */
const ONE_TURN_S = 1;

/** Who turns a knob by measured gain. */
const AUTOTUNE = "autotune";

/** A trial that was taken back is so pale. */
const PALE = 0.35;

/** The cursor is at a mark where it is so near [px]. */
const AT_MARK_PX = 6;

/** Half of the width, and the height, of the triangle on a mark of a tuner [px]. */
const HEAD_PX = 4;

/** Names at the ends of lines: their height, their room, and on a narrow page [px]. */
const NAME_PX = 13;
const NAMES_PX = 128;
const NARROW_PX = 84;
const NARROW = 480;

const WIDTHS: Readonly<Record<Look, number>> = { other: 1, limit: 2.5, loop: 2.5 };

/** Colours as the page has them now. */
export interface Colours extends Readonly<Record<Look, string>> {
  readonly text: string;
  readonly grid: string;
}

export interface Source {
  colours(): Colours;
  changes(): readonly Change[];
  onCursor(place: number | null, left: number): void;
}

export function optionsOf(lines: readonly Line[], width: number, source: Source): uPlot.Options {
  return {
    width,
    height: HEIGHT,
    padding: [18, width < NARROW ? NARROW_PX : NAMES_PX, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false, setScale: false } },
    scales: {
      x: { time: true, range: spanOf },
      y: { range: (_plot, _least, most) => rateSpan(most) },
    },
    axes: [timeAxis(source), rateAxis(source)],
    series: [
      {},
      ...lines.map(({ label, look }) => ({
        label,
        scale: "y",
        width: WIDTHS[look],
        dash: look === "loop" ? [8, 4] : [],
        stroke: () => source.colours()[look],
        points: { show: false },
      })),
    ],
    hooks: {
      draw: [
        (plot: uPlot) => drawMarks(plot, source),
        (plot: uPlot) => drawNames(plot, lines, source),
      ],
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
  return [end - Math.min(MOST_S, Math.max(1, end - (first ?? end))), end];
}

function rateSpan(most: number | null): [number, number] {
  return [0, most ? most * 1.06 : 1];
}

/**
 * The rates of a line in items/s. What comes first, and first after a gap, is left out: it is the
 * rate at which buffers were filled, beside which all that lasts would look alike.
 */
export function settled(rates: readonly (number | null)[], items: number): (number | null)[] {
  return rates.map((rate, place) => {
    const before = place > 0 ? (rates[place - 1] ?? null) : null;
    return rate === null || before === null ? null : rate * items;
  });
}

/** Knob changes as they are marked: those of one press are one, from the first value to the last. */
export function turnsOf(changes: readonly Change[]): Change[] {
  const turns: Change[] = [];
  for (const change of changes) {
    const last = turns.findLast((turn) => turn.knob === change.knob);
    if (last !== undefined && isOnePress(last, change)) {
      turns.splice(turns.indexOf(last), 1);
      turns.push({ ...change, old: last.old });
    } else {
      turns.push(change);
    }
  }
  return turns.filter((turn) => turn.old !== turn.new);
}

function isOnePress(last: Change, change: Change): boolean {
  const isOurs = last.by === change.by && change.by !== AUTOTUNE;
  return isOurs && change.when_s - last.when_s < ONE_TURN_S;
}

function font(weight = 400, ratio = 1): string {
  return `${weight} ${11 * ratio}px system-ui, sans-serif`;
}

function timeAxis(source: Source): uPlot.Axis {
  return {
    stroke: () => source.colours().text,
    font: font(),
    size: 22,
    gap: 3,
    space: 90,
    grid: { show: false },
    ticks: { stroke: () => source.colours().grid, width: 1, size: 4 },
    values: (_plot, splits) => splits.map(formatMoment),
  };
}

function rateAxis(source: Source): uPlot.Axis {
  return {
    scale: "y",
    stroke: () => source.colours().text,
    font: font(),
    size: 46,
    gap: 4,
    space: 30,
    grid: { show: true, stroke: () => source.colours().grid, width: 1 },
    ticks: { show: false },
    values: (_plot, splits) => splits.map(formatTick),
  };
}

// -- Names at the ends of lines ------------------------------------------------------------------

interface Name extends Pick<Line, "label" | "look"> {
  readonly y: number;
}

/** Write the name of each line at its end, moved apart; where there is no room, not those of others. */
function drawNames(plot: uPlot, lines: readonly Line[], source: Source): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const names = lines.flatMap(({ label, look }, place): Name[] => {
    const rate = [...(plot.data[place + 1] ?? [])].findLast((one) => typeof one === "number");
    return typeof rate === "number" ? [{ label, look, y: plot.valToPos(rate, "y", true) }] : [];
  });
  const gap = NAME_PX * ratio;
  const most = Math.floor(bbox.height / gap);
  const chosen = names
    .sort((left, right) => Number(left.look === "other") - Number(right.look === "other"))
    .slice(0, most)
    .sort((left, right) => left.y - right.y);
  const ys = apart(
    chosen.map(({ y }) => y),
    gap,
    bbox.top + gap / 2,
    bbox.top + bbox.height,
  );
  const left = bbox.left + bbox.width + 6 * ratio;
  ctx.save();
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  chosen.forEach(({ label, look }, place) => {
    ctx.font = font(look === "other" ? 400 : 600, ratio);
    ctx.fillStyle = look === "other" ? source.colours().text : source.colours()[look];
    ctx.fillText(isolated(formatName(label)), left, ys[place] ?? 0, ctx.canvas.width - left);
  });
  ctx.restore();
}

/** Move ascending places apart by `gap`, between `top` and `bottom`. */
export function apart(
  places: readonly number[],
  gap: number,
  top: number,
  bottom: number,
): number[] {
  const moved: number[] = [];
  for (const place of places) {
    moved.push(Math.max(place, (moved.at(-1) ?? top - gap) + gap));
  }
  let most = bottom;
  for (let at = moved.length - 1; at >= 0; at -= 1) {
    moved[at] = Math.min(moved[at] ?? most, most);
    most = (moved[at] ?? most) - gap;
  }
  return moved;
}

// -- Marks of knob changes -----------------------------------------------------------------------

/** The knob changes whose marks are at a place in the plot [px]. */
export function turnsAt(plot: uPlot, changes: readonly Change[], left: number): Change[] {
  return turnsOf(changes).filter(
    ({ when_s }) => Math.abs(plot.valToPos(when_s, "x") - left) <= AT_MARK_PX,
  );
}

/**
 * Vertical lines where knobs were turned; labels where there is room for them. Those of a tuner have
 * a head, its trials that were taken back are pale.
 */
function drawMarks(plot: uPlot, source: Source): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = source.colours().text;
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.font = font(400, ratio);
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  let free = bbox.left + bbox.width;
  for (const change of turnsOf(source.changes()).reverse()) {
    const x = Math.round(plot.valToPos(change.when_s, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) {
      continue;
    }
    ctx.globalAlpha = change.taken_back ? PALE : 1;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (change.by === AUTOTUNE) {
      head(ctx, x, bbox.top, HEAD_PX * ratio);
    }
    free = change.taken_back ? free : label(ctx, change, x, bbox, free, ratio);
  }
  ctx.restore();
}

/** A triangle on a mark, which the cursor finds. */
function head(ctx: CanvasRenderingContext2D, x: number, top: number, size: number): void {
  ctx.beginPath();
  ctx.moveTo(x - size, top);
  ctx.lineTo(x + size, top);
  ctx.lineTo(x, top + 1.5 * size);
  ctx.fill();
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
