import { describe, expect, test } from "vitest";
import { History, parseSnapshot, type Snapshot } from "../src";
import { sample } from "./sample";

function at(time_s: number, rate = 1): Snapshot {
  return parseSnapshot(sample({ time_s, items_per_s: rate }));
}

const CHANGE = { when_s: 5, knob: "decode.concurrency", old: 2, new: 4, by: "panel", why: "" };

describe("a history", () => {
  test("keeps one point a second, the newest moving along", () => {
    const history = new History();
    for (const time_s of [0, 1, 1.25, 1.5, 2, 2.25]) {
      history.append(at(time_s));
    }
    expect(history.time_s).toEqual([0, 1, 2, 2.25]);
  });

  test("holds the loop's rate beside those of the stages", () => {
    const history = new History();
    history.append(at(0, 7));
    expect(history.rates("consumer")).toEqual([7]);
  });

  test("is bounded", () => {
    const history = new History(3);
    for (const time_s of [0, 1, 2, 3, 4]) {
      history.append(at(time_s, time_s));
    }
    expect([history.time_s, history.rates("consumer")]).toEqual([
      [2, 3, 4],
      [2, 3, 4],
    ]);
  });

  test("leaves a gap where a stage was not known", () => {
    const history = new History();
    history.replace({ time_s: [0, 1], stages: new Map([["old", [1, 2]]]), changes: [] });
    history.append(at(2));
    expect(history.rates("old")).toEqual([1, 2, null]);
  });

  test("ignores a snapshot that was overtaken", () => {
    const history = new History();
    history.append(at(5));
    history.append(at(4));
    expect(history.time_s).toEqual([5]);
  });

  test("does not double a change that it knows", () => {
    const history = new History();
    history.replace({ time_s: [], stages: new Map(), changes: [CHANGE] });
    history.note([CHANGE, { ...CHANGE, when_s: 3 }]);
    expect(history.changes.map((change) => change.when_s)).toEqual([3, 5]);
  });

  test("counts a version for what is to be drawn anew", () => {
    const history = new History();
    history.append(at(0));
    history.append(at(1));
    const before = history.version;
    history.append(at(1.5));
    history.append(at(2));
    expect(history.version - before).toBe(1);
  });
});
