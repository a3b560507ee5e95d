import { describe, expect, test } from "vitest";
import { History, parseSnapshot, type Snapshot } from "../src";
import { sample } from "./sample";

function at(time_s: number, rate = 1, changes = {}): Snapshot {
  return parseSnapshot(sample({ time_s, items_per_s: rate, ...changes }));
}

const CHANGE = {
  when_s: 5,
  knob: "decode.concurrency",
  old: 2,
  new: 4,
  by: "panel",
  why: "",
  taken_back: false,
};

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
    history.replace({ time_s: [0, 1], stages: new Map([["old", [1, 2]]]), changes: [], epoch: 1 });
    history.append(at(2));
    expect(history.rates("old")).toEqual([1, 2, null]);
  });

  test("leaves a gap where nothing ran between two epochs", () => {
    const history = new History();
    history.append(at(0));
    history.append(at(1));
    history.append(at(1.25));
    history.append(at(1.5, 1, { state: "finished" }));
    history.append(at(60, 1, { state: "finished" }));
    history.append(at(90, 2, { epoch: 2 }));
    history.append(at(90.25, 2, { epoch: 2 }));
    expect([history.time_s, history.rates("consumer")]).toEqual([
      [0, 1, 1.25, 1.25, 90, 90.25],
      [1, 1, 1, null, 2, 2],
    ]);
  });

  test("leaves none where one epoch follows the other at once, or in a pause", () => {
    const history = new History();
    history.append(at(0));
    history.append(at(1.5, 1, { epoch: 2 }));
    history.append(at(60, 1, { epoch: 2, state: "paused" }));
    expect(history.rates("consumer")).toEqual([1, 1, 1]);
  });

  test("knows the epoch that the kernel remembers", () => {
    const history = new History();
    const stages = new Map([["consumer", [4]]]);
    history.replace({ time_s: [0], stages, changes: [], epoch: 0 });
    history.append(at(9, 5));
    expect(history.rates("consumer")).toEqual([4, null, 5]);
  });

  test("ignores a snapshot that was overtaken", () => {
    const history = new History();
    history.append(at(5));
    history.append(at(4));
    expect(history.time_s).toEqual([5]);
  });

  test("does not double a change that it knows", () => {
    const history = new History();
    history.replace({ time_s: [], stages: new Map(), changes: [CHANGE], epoch: null });
    history.note([CHANGE, { ...CHANGE, when_s: 3 }]);
    expect(history.changes.map((change) => change.when_s)).toEqual([3, 5]);
  });

  test("learns that a change was taken back", () => {
    const history = new History();
    history.note([CHANGE]);
    const { version } = history;
    history.note([CHANGE]);
    expect(history.version).toBe(version);
    history.note([{ ...CHANGE, taken_back: true }]);
    expect(history.changes).toEqual([{ ...CHANGE, taken_back: true }]);
    expect(history.version).toBe(version + 1);
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
