import { describe, expect, test } from "vitest";
import { ParseError, parseMessage, parseSnapshot } from "../src";
import { sample, sampleWithStage } from "./sample";

const HISTORY = { time_s: [1, 2], stages: { decode: [3, 4] }, changes: [] };

describe("a snapshot", () => {
  test("that the kernel made is read whole", () => {
    expect(parseSnapshot(sample())).toEqual(sample());
  });

  test("may hold null for changes and failures", () => {
    const read = parseSnapshot(sample({ changes: null, failures: null }));
    expect([read.changes, read.failures]).toEqual([null, null]);
  });

  test("loses fields that are not known", () => {
    expect(parseSnapshot(sample({ mood: "fine" }))).toEqual(sample());
  });

  test("keeps actions that are not known", () => {
    expect(parseSnapshot(sample({ actions: ["fly"] })).actions).toEqual(["fly"]);
  });

  test("has long text cut", () => {
    expect(parseSnapshot(sample({ error: "x".repeat(9000) })).error).toHaveLength(500);
  });

  test("has a share that rounding put above 1 brought in", () => {
    expect(parseSnapshot(sampleWithStage({ busy: 1.001 })).stages[0]?.busy).toBe(1);
  });

  test.each([
    ["another version", { version: 2 }],
    ["an unknown state", { state: "bored" }],
    ["a rate that is no number", { items_per_s: "fast" }],
    ["a rate below 0", { items_per_s: -1 }],
    ["half an item", { delivered: 0.5 }],
    ["no stages", { stages: undefined }],
    ["stages that are no array", { stages: {} }],
    ["a title that is no text", { title: 7 }],
    ["a diagnosis that is missing", { diagnosis: null }],
  ])("with %s is refused", (_what, changes) => {
    expect(() => parseSnapshot(sample(changes))).toThrow(ParseError);
  });

  test("that is refused says where it is wrong", () => {
    expect(() => parseSnapshot(sampleWithStage({ queued: -1 }))).toThrow(
      "snapshot.stages[0].queued must be at least 0, got -1",
    );
  });
});

describe("a message", () => {
  test("that says hello brings snapshot and history", () => {
    const read = parseMessage({ type: "hello", snapshot: sample(), history: HISTORY });
    expect(read).toMatchObject({ history: { stages: new Map([["decode", [3, 4]]]) } });
  });

  test("that ticks brings a snapshot", () => {
    expect(parseMessage({ type: "tick", snapshot: sample() }).type).toBe("tick");
  });

  test("that acknowledges brings the value in force", () => {
    const ack = { type: "ack", id: 7, ok: true, value: 8 };
    expect(parseMessage(ack)).toEqual(ack);
  });

  test("that refuses says why", () => {
    const ack = { type: "ack", id: 7, ok: false, value: null, error: "no" };
    expect(parseMessage(ack)).toEqual(ack);
  });

  test.each([
    ["no object", "tick"],
    ["nothing", null],
    ["an array", []],
    ["of an unknown type", { type: "sing" }],
    ["named as something inherited", { type: "constructor" }],
    ["a refusal without a reason", { type: "ack", id: 1, ok: false, value: null }],
    ["an ack without a number", { type: "ack", ok: true, value: 1 }],
    ["a tick without a snapshot", { type: "tick" }],
    [
      "a history with times that go back",
      { type: "hello", snapshot: sample(), history: { ...HISTORY, time_s: [2, 1] } },
    ],
    [
      "a history with a column that is too short",
      { type: "hello", snapshot: sample(), history: { ...HISTORY, stages: { decode: [3] } } },
    ],
    [
      "a history of too many points",
      {
        type: "hello",
        snapshot: sample(),
        history: { ...HISTORY, time_s: Array(601).fill(0), stages: {} },
      },
    ],
  ])("that is %s is refused", (_what, message) => {
    expect(() => parseMessage(message)).toThrow(ParseError);
  });
});
