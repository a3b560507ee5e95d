import { describe, expect, test } from "vitest";
import { Meter } from "../src/meters";

describe("a meter", () => {
  test.each([
    [16, 17, "16 / 17", false],
    [246, 246, "246/246", true],
    [8, 10_000, "8/10000", true],
  ])("writes many letters small: %i of %i", (now, most, text, isLong) => {
    const meter = new Meter("queue", "queue");
    meter.update(now, most, "");
    const value = meter.el.querySelector("[data-field=queue]");
    expect([value?.textContent, value?.classList.contains("nbp-long")]).toEqual([text, isLong]);
  });
});
