import { describe, expect, test } from "vitest";
import { ParseError, parseMessage, parseSnapshot } from "../src";
import { sample, sampleWithStage } from "./sample";

const TURNED = { stage: "decode", knob: "concurrency", old: 4, new: 5 };
const EXPORTED = {
  type: "exported",
  id: 7,
  ok: false,
  path: "",
  notes: ["a note"],
  error: "variable 'fh' is a live TextIOWrapper\n  used by: decode()",
  edited: true,
};
const HISTORY = { time_s: [1, 2], stages: { decode: [3, 4] }, changes: [], epoch: 1 };

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

  test("that was saved before there was export is read", () => {
    expect(parseSnapshot(sample({ export: undefined })).export).toBeNull();
  });

  test("that was saved before there was a severity is read", () => {
    const { severity: _, ...diagnosis } = sample().diagnosis as Record<string, unknown>;
    expect(parseSnapshot(sample({ diagnosis })).diagnosis.severity).toBe("info");
  });

  test("that was saved before there was a tuner is read", () => {
    const changes = (sample().changes as object[]).map((change) => ({
      ...change,
      taken_back: undefined,
    }));
    const read = parseSnapshot(sample({ tuner: undefined, changes }));
    expect([read.tuner, read.changes?.[0]?.taken_back]).toEqual([null, false]);
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
    ["a tuner that is a text", { tuner: "on" }],
    ["a tuner without a state", { tuner: { active: true, left_alone: [], done: null } }],
    [
      "half a decision",
      { tuner: { active: true, state: "", left_alone: [], done: [{ when_s: 1, knob: "a" }] } },
    ],
    [
      "a knob left alone that has no value",
      { tuner: { active: true, state: "", left_alone: [{ stage: "a", knob: "b" }], done: null } },
    ],
    ["an export that is a text", { export: "loader.py" }],
    ["an export without a file", { export: { turned: [] } }],
    [
      "half a turned knob",
      { export: { file: "x", turned: [{ stage: "a", knob: "b", old: 1, new: 1.5 }] } },
    ],
    ["an export of too many knobs", { export: { file: "x", turned: Array(101).fill(TURNED) } }],
  ])("with %s is refused", (_what, changes) => {
    expect(() => parseSnapshot(sample(changes))).toThrow(ParseError);
  });

  test("that is refused says where it is wrong", () => {
    expect(() => parseSnapshot(sampleWithStage({ queued: -1 }))).toThrow(
      "snapshot.stages[0].queued must be at least 0, got -1",
    );
  });
});

const WORKERS = { count: 2, starting: 0, memory_bytes: 0, link: null };

describe("workers", () => {
  test.each([
    "http://127.0.0.1:8787/status",
    "https://hub.example.org/user/ada/proxy/8787/status?tab=1#x",
    "HTTP://[::1]:8787",
  ])("keep the link %s", (link) => {
    const read = parseSnapshot(sampleWithStage({ workers: { ...WORKERS, link } }));
    expect(read.stages[0]?.workers?.link).toBe(link);
  });

  test.each([
    "javascript:alert(1)",
    "JavaScript:alert(1)//http://x",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:http://x/1",
    "//evil.example.org",
    "/status",
    "http:evil.example.org",
    "http://",
    "http://user:secret@example.org/",
    "http://example.org\\@evil.example.org",
    "http://example.org/a b",
    "http://example.org/\n",
    "http://example.org/\u202e",
    `http://example.org/${"x".repeat(300)}`,
    "",
  ])("lose the link %j", (link) => {
    const read = parseSnapshot(sampleWithStage({ workers: { ...WORKERS, link } }));
    expect(read.stages[0]?.workers).toEqual(WORKERS);
  });

  test.each([
    ["a link that is no text", { workers: { ...WORKERS, link: 7 } }],
    ["a link that is an object", { workers: { ...WORKERS, link: { href: "http://x" } } }],
    ["a link that is missing", { workers: { ...WORKERS, link: undefined } }],
    ["half a worker", { workers: { ...WORKERS, count: 0.5 } }],
    ["less than no memory", { workers: { ...WORKERS, memory_bytes: -1 } }],
    ["workers that are a number", { workers: 2 }],
    ["workers that are missing", { workers: undefined }],
    ["a sharer that is no text", { shares: 1 }],
  ])("with %s are refused", (_what, changes) => {
    expect(() => parseSnapshot(sampleWithStage(changes))).toThrow(ParseError);
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

  test("that tells of an export is read whole, its lines kept", () => {
    expect(parseMessage({ ...EXPORTED, mood: "fine" })).toEqual(EXPORTED);
  });

  test("that tells of an export is bounded", () => {
    const read = parseMessage({ ...EXPORTED, error: "x".repeat(10_000), path: "y".repeat(5000) });
    expect(read).toMatchObject({ error: "x".repeat(8100), path: "y".repeat(4096) });
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
    ["an export without a number", { ...EXPORTED, id: null }],
    ["an export whose path is no text", { ...EXPORTED, path: ["loader.py"] }],
    ["an export whose notes are no list", { ...EXPORTED, notes: "a note" }],
    ["an export with a note that is no text", { ...EXPORTED, notes: [{}] }],
    ["an export that is neither done nor refused", { ...EXPORTED, ok: undefined }],
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
