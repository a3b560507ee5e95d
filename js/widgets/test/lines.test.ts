import { parseSnapshot } from "@nbpipe/protocol";
import { expect, test } from "vitest";
import { sample } from "../../protocol/test/sample";
import { linesOf } from "../src/lines";

function drawn(changes: Record<string, unknown> = {}) {
  return linesOf(parseSnapshot(sample(changes)));
}

test("all lines are in items/s: a batch counts as its items", () => {
  expect(drawn().map(({ items }) => items)).toEqual([1, 1, 1, 1, 64, 64, 64]);
});

test("what limits and the training loop stand out", () => {
  const looks = drawn().map(({ look }) => look);
  expect(looks).toEqual(["other", "other", "limit", "other", "other", "other", "loop"]);
});

test("nothing limits where the data keeps up", () => {
  const diagnosis = { kind: "keeps_up", stage: "files", text: "", advice: "", suggestion: null };
  expect(drawn({ diagnosis }).filter(({ look }) => look === "limit")).toEqual([]);
});
