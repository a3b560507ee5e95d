import { expect, test } from "vitest";
import saved from "../../../tests/data/recorded/panel.json";
import { parseSnapshot } from "../src";

test("a panel that was saved in a notebook is still read", () => {
  const read = parseSnapshot(structuredClone(saved));
  expect([read.title, read.state, read.delivered]).toEqual([
    "from_0 > shuffle > refused > batch",
    "finished",
    6,
  ]);
  expect(read.stages.map((stage) => [stage.address, stage.op])).toEqual([
    ["from_0", "source"],
    ["refused", "map"],
    ["batch", "batch"],
  ]);
  expect(read.stages[1]?.knobs[0]).toMatchObject({ name: "concurrency", value: 5 });
  expect(read.failures?.[0]?.error).toContain("ValueError");
  expect(read.changes?.[0]).toMatchObject({ knob: "refused.concurrency", old: 1, new: 5 });
});
