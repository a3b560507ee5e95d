import { expect, test } from "vitest";
import { settledTop, spanOf, turnsOf } from "../src/plot";

function change(when_s: number, knob: string, old: number, now: number) {
  return { when_s, knob, old, new: now, by: "panel", why: "" };
}

test.each([
  [[1500, 60, 120, 90], 120],
  [[80, 90, null, 2000, 100], 100], // a gap between two epochs
  [[], 0],
  [[7], 0],
])("the burst that fills the buffers does not set the scale: %j", (rates, expected) => {
  expect(settledTop(rates)).toBe(expected);
});

test.each([
  [[null, null], 15],
  [[100, 105], 15],
  [[100, 116], 30],
  [[100, 155], 60],
  [[100, 400], 300],
  [[100, 5000], 600],
])("a short history fills the chart: %j", ([first, last], shown_s) => {
  const [from, to] = spanOf(null, first ?? null, last ?? null);
  expect([to - from, to]).toEqual([shown_s, last ?? 0]);
});

test("what was dragged is one turn, from the first value to the last", () => {
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

test("what was dragged back to where it was is no turn", () => {
  expect(turnsOf([change(1, "a.b", 4, 5), change(1.5, "a.b", 5, 4)])).toEqual([]);
});
