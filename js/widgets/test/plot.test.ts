import type uPlot from "uplot";
import { expect, test } from "vitest";
import { apart, settled, spanOf, turnsAt, turnsOf } from "../src/plot";

function change(when_s: number, knob: string, old: number, now: number, by = "panel") {
  return { when_s, knob, old, new: now, by, why: "", taken_back: false };
}

test.each([
  [
    [1500, 60, 120],
    [null, 120, 240],
  ],
  [
    [80, 90, null, 2000, 100],
    [null, 180, null, null, 200], // a gap between two epochs
  ],
  [[7], [null]],
])("the burst that fills the buffers is not drawn: %j", (rates, expected) => {
  expect(settled(rates, 2)).toEqual(expected);
});

test.each([
  [
    [10, 50],
    [10, 50],
  ],
  [
    [10, 12, 14],
    [10, 20, 30],
  ],
  [
    [88, 89, 95],
    [70, 80, 90],
  ], // none below the last line
  [[], []],
])("names that would lie on one another are moved apart: %j", (places, expected) => {
  expect(apart(places, 10, 5, 90)).toEqual(expected);
});

test.each([
  [[null, null], 1],
  [[100, 105], 5],
  [[100, 400], 300],
  [[100, 5000], 600],
])("a short history fills the chart: %j", ([first, last], shown_s) => {
  const [from, to] = spanOf(null, first ?? null, last ?? null);
  expect([to - from, to]).toEqual([shown_s, last ?? 0]);
});

test("what one press turned is one turn, from the first value to the last", () => {
  const drag = [change(10, "read.prefetch", 4, 5), change(10.2, "read.prefetch", 5, 8)];
  const turns = turnsOf([
    change(3, "read.concurrency", 1, 2),
    ...drag,
    change(20, "read.prefetch", 8, 9),
  ]);
  expect(turns.map((turn) => [turn.when_s, turn.old, turn.new])).toEqual([
    [3, 1, 2],
    [10.2, 4, 8],
    [20, 8, 9],
  ]);
});

test("each turn of a tuner is marked, however soon the next one follows", () => {
  const turns = [
    change(10, "a.b", 4, 8, "autotune"),
    { ...change(10.5, "a.b", 8, 4, "autotune"), taken_back: true },
  ];
  expect(turnsOf(turns)).toEqual(turns);
});

test("the marks at a place are those of the turns that lie there", () => {
  const plot = { valToPos: (when_s: number) => 10 * when_s } as unknown as uPlot;
  const turns = [change(3, "a.b", 1, 2), change(4, "a.b", 2, 3), change(4.5, "c.d", 1, 2)];
  expect(turnsAt(plot, turns, 42)).toEqual(turns.slice(1));
});

test("what was turned back to where it was is no turn", () => {
  expect(turnsOf([change(1, "a.b", 4, 5), change(1.5, "a.b", 5, 4)])).toEqual([]);
});
