import type { Knob } from "@nbpipe/protocol";
import { describe, expect, test } from "vitest";
import { freshTop, stepped, suitedTop } from "../src/scale";

function knob(name: string, maximum = 1024): Knob {
  return { name, value: 4, minimum: 1, maximum, default: 4, unit: "calls" };
}

describe("the top of a slider", () => {
  test.each([
    ["concurrency", 1, 16],
    ["concurrency", 8, 16],
    ["concurrency", 9, 32],
    ["concurrency", 600, 1024],
    ["prefetch", 1, 32],
    ["prefetch", 40, 128],
  ])("of %s is chosen for %i as %i", (name, value, top) => {
    expect(freshTop(knob(name), value)).toBe(top);
  });

  test("is at most the knob's maximum", () => {
    expect(freshTop(knob("depth", 10), 4)).toBe(10);
  });

  test.each([
    [8, 16],
    [14, 16],
    [15, 32],
    [4, 16],
    [40, 128],
  ])("of 16 becomes for %i %i", (value, top) => {
    expect(suitedTop(knob("concurrency"), value, 16)).toBe(top);
  });

  test("is chosen anew when the value falls below a quarter", () => {
    expect(suitedTop(knob("concurrency"), 15, 64)).toBe(32);
  });
});

describe("a key", () => {
  test.each([
    ["ArrowUp", 5],
    ["ArrowRight", 5],
    ["ArrowDown", 3],
    ["ArrowLeft", 3],
    ["PageUp", 14],
    ["PageDown", 1],
    ["Home", 1],
    ["End", 16],
    ["x", undefined],
  ])("%s leads from 4 to %s", (key, value) => {
    expect(stepped(knob("concurrency"), 4, key, 16)).toBe(value);
  });
});
