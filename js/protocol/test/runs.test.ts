import { expect, test } from "vitest";
import { rowOf } from "../../labextension/test/made-up";
import { ParseError, parseRuns } from "../src";

test.each([
  ["a message that is none", 3],
  ["a message of no known type", { type: "odd" }],
  ["a row without its number", { type: "runs", runs: [rowOf({ run: null })] }],
  ["a row in no known state", { type: "runs", runs: [rowOf({ state: "odd" })] }],
  ["a rate below 0", { type: "runs", runs: [rowOf({ rate: -1 })] }],
  ["too many rows", { type: "runs", runs: Array(1001).fill(rowOf()) }],
  ["a hello without a protocol", { type: "hello", version: "1", runs: [] }],
  ["an answer that does not say whether", { type: "ack", id: 1 }],
  ["a chain without its code", { type: "chain", id: 1, ok: true, error: "" }],
])("%s is refused", (_, message) => {
  expect(() => parseRuns(message)).toThrow(ParseError);
});

test("texts of a row are cut where they are too long", () => {
  const read = parseRuns({ type: "runs", runs: [rowOf({ title: "x".repeat(5000) })] });
  expect(read.type === "runs" && read.runs[0]?.title.length).toBe(1000);
});

test("rows of another protocol are not read", () => {
  const read = parseRuns({ type: "hello", protocol: 9, version: "9.1", runs: [{ odd: true }] });
  expect(read).toEqual({ type: "hello", protocol: 9, version: "9.1", runs: [] });
});

test("a row of a kernel that says no severity is read", () => {
  const read = parseRuns({ type: "runs", runs: [rowOf({ severity: undefined })] });
  expect(read.type === "runs" && read.runs[0]?.severity).toBe("info");
});
