import { describe, expect, test } from "vitest";
import { Meter, Spark } from "../src/meters";

/** The subpaths of the line, each as [x, y] of its points; the picture is 60 wide and 20 high. */
function drawn(time_s: readonly number[], rates: readonly (number | null)[]): number[][][] {
  const spark = new Spark();
  spark.update(time_s, rates);
  const path = spark.el.querySelector(".nbp-stroke")?.getAttribute("d") ?? "";
  const parts = path.split("M").filter((part) => part !== "");
  return parts.map((part) => part.split(" ").map((spot) => spot.split(",").map(Number)));
}

describe("a sparkline", () => {
  test("reaches from its largest rate to none", () => {
    expect(drawn([0, 30, 60], [50, 100, 0])).toEqual([
      [
        [0, 10],
        [30, 1],
        [60, 19],
      ],
    ]);
  });

  test("of one item in 100 s is not full", () => {
    expect(drawn([0, 60], [0.01, 0.01])[0]?.map(([, y]) => y)).toEqual([18.8, 18.8]);
  });

  test("has a gap where nothing ran between two epochs", () => {
    const parts = drawn([0, 1, 2, 40, 41, 60], [8, 8, null, null, 4, 4]);
    expect(parts.map((part) => part.map(([x]) => x))).toEqual([
      [41, 60],
      [0, 1],
    ]);
  });

  test("is empty without a rate", () => {
    expect(drawn([], [])).toEqual([]);
  });
});

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
