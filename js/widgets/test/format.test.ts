import { describe, expect, test } from "vitest";
import {
  formatAmount,
  formatBrief,
  formatBytes,
  formatClock,
  formatCount,
  formatName,
  formatProgress,
  formatShare,
  formatSpan,
  formatTick,
  formatTime,
  unbroken,
} from "../src/format";

/** Thin spaces are spaces. */
function plain(text: string): string {
  return text.replace(/\s/g, " ");
}

describe("a number is written in a few digits", () => {
  test.each([
    [0, "0"],
    [0.5, "0.50"],
    [7, "7.00"],
    [9.999, "10.0"],
    [99.97, "100"],
    [999.4, "999"],
    [999.6, "1.00 k"],
    [12345, "12.3 k"],
    [2.5e6, "2.50 M"],
    [1e21, "1000 E"],
  ])("amount %d is %s", (amount, text) => {
    expect(plain(formatAmount(amount))).toBe(text);
  });

  test.each([
    [0, "–"],
    [0.0042, "4.20 ms"],
    [0.00031, "310 µs"],
    [0.9996, "1.00 s"],
    [12.34, "12.3 s"],
    [125, "2:05"],
  ])("time %d s is %s", (time_s, text) => {
    expect(plain(formatTime(time_s))).toBe(text);
  });

  test.each([
    [0, "0:00"],
    [83, "1:23"],
    [59.6, "1:00"],
    [3725, "1:02:05"],
  ])("clock %d s is %s", (time_s, text) => {
    expect(formatClock(time_s)).toBe(text);
  });

  test("bytes have a prefix", () => {
    expect(plain(formatBytes(1.3e9))).toBe("1.30 GB");
  });

  test("a share is in percent", () => {
    expect(plain(formatShare(0.974))).toBe("97%");
  });

  test("a count is whole", () => {
    expect([formatCount(12345), formatBrief(12)]).toEqual(["12,345", "12"]);
  });
});

test.each([
  [
    "busy 97%, a call takes 4 ms (98% of it waiting)",
    "busy 97%, a call takes 4_ms (98% of it waiting)",
  ],
  ["4% of the time; try concurrency 16", "4% of the time; try concurrency_16"],
  ["for 1 min 32 s, on item 40 seconds", "for 1_min 32_s, on item 40 seconds"],
])("a line does not break between a number and its unit: %s", (sentence, expected) => {
  expect(unbroken(sentence).replaceAll("\u00a0", "_")).toBe(expected);
});

test.each([
  [7.5, "7.5"],
  [2.25, "2.25"],
  [10, "10"],
  [1500, "1.5 k"],
  [20_000, "20 k"],
  [0, "0"],
])("a rate at an axis has no zeros behind its point: %s", (rate, expected) => {
  expect(formatTick(rate).replace(/\s/g, " ")).toBe(expected);
});

test.each([
  [0.6, 0.93, true, "0.6 s"],
  [0.6, 0.93, false, "0:01"],
  [0, 0, true, "0:00"],
  [9.5, 9.96, true, "0:10"],
])(
  "an epoch of seconds that is over is told in tenths: %s of %s, %s",
  (time_s, all_s, isOver, expected) => {
    expect(formatSpan(time_s, all_s, isOver).replace(/\s/g, " ")).toBe(expected);
  },
);

test.each([
  ["decode", "decode"],
  ["normalise_and_augment_the_image_step_12", "normalise…ge_step_12"],
])("a name that is cut keeps its end: %s", (name, expected) => {
  expect(formatName(name)).toBe(expected);
});

test.each([
  [120, 500, "batches", "120 of 500 batches"],
  [1, 500, "batches", "1 of 500 batches"],
  [0, 1, "batches", "0 of 1 batch"],
  [1, null, "items", "1 item"],
  [0, null, "items", "0 items"],
])("%d of %s %s is told as %s", (done, total, unit, text) => {
  expect(formatProgress(done, total, unit)).toBe(text);
});
