import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { sample } from "../../protocol/test/sample";
import { MockModel } from "./mock-model";
import { frame, type Shown, show, type } from "./page";

type Fields = Record<string, unknown>;

const PAGE = "http://127.0.0.1:8787/status";
const WORKERS = { count: 4, starting: 0, memory_bytes: 1_220_000_000, link: null };

let model: MockModel;
let shown: Shown;

beforeEach(() => {
  vi.useFakeTimers();
  model = new MockModel();
  shown = show(model);
});

afterEach(() => {
  shown.close();
  document.body.replaceChildren();
  vi.useRealTimers();
});

/** Say something else of the stage "batch", the first of a region. */
function tell(workers: Fields | null, more: Fields = {}): void {
  const stages = sample().stages as Fields[];
  model.tick({
    stages: stages.map((stage) =>
      stage.address === "batch" ? { ...stage, workers, ...more } : stage,
    ),
  });
  frame();
}

function within(stage: string, selector: string): HTMLElement {
  const found = shown.stage(stage).querySelector<HTMLElement>(selector);
  if (found === null) {
    throw new Error(`nothing in ${stage} matches ${selector}`);
  }
  return found;
}

function said(stage: string): string {
  return (within(stage, "[data-field=workers]").textContent ?? "").replace(/\s/g, " ");
}

describe("a stage says in a word", () => {
  test.each([
    ["to_device", "device", "cuda:0", "to_device · cuda:0"],
    ["map", "thread", "isolated", "map · isolated"],
    ["map", "process", "process", "map · process"],
    ["map", "dask", "dask", "map · dask"],
    ["map", "thread", "", "map · thread"], // of an older notebook
  ])("where it runs: %s on %s is %s", (op, executor, place, expected) => {
    tell(null, { op, executor, place });
    expect(within("batch", "[data-field=kind]").textContent).toBe(expected);
  });

  test.each([
    [6.2e8, "holds 620 MB"],
    [0, "holds nothing"],
  ])("what it holds on its device: %d bytes", (held_bytes, expected) => {
    tell(null, { place: "cuda:0", held_bytes, queued: 2 });
    const { title } = within("batch", "[data-field=workers]");
    expect([said("batch"), title]).toEqual([expected, "2 batches on cuda:0 wait for the loop"]);
  });
});

describe("a stage with workers", () => {
  test.each([
    [{ ...WORKERS, starting: 4 }, "starting 4 workers"],
    [{ ...WORKERS, count: 0, starting: 1 }, "starting 1 worker"],
    [{ ...WORKERS, starting: 1 }, "4 workers, 1 starting"],
    [WORKERS, "4 workers, 1.22 GB"],
    [{ ...WORKERS, memory_bytes: 0 }, "4 workers"],
    [{ ...WORKERS, count: 0 }, "no workers"],
  ])("says how many there are, or start: %o", (workers, expected) => {
    tell(workers);
    expect(said("batch")).toBe(expected);
  });

  test("says that there are none yet before its first item", () => {
    tell({ ...WORKERS, count: 0 }, { items_out: 0 });
    expect(said("batch")).toBe("no workers yet");
  });

  test("keeps the line for them while they start and when they are there", () => {
    const hidden = [{ ...WORKERS, count: 0 }, { ...WORKERS, starting: 4 }, WORKERS].map(
      (workers) => {
        tell(workers);
        return within("batch", ".nbp-workers").hidden;
      },
    );
    expect(hidden).toEqual([false, false, false]);
  });

  test("has no such line where its calls run in threads", () => {
    expect(
      ["read", "decode", "normalise"].map((stage) => within(stage, ".nbp-workers").hidden),
    ).toEqual([true, true, true]);
  });

  test("links to the page that shows them, in a tab of its own", () => {
    tell({ ...WORKERS, link: PAGE });
    const link = within("batch", "a.nbp-page") as HTMLAnchorElement;
    expect([link.hidden, link.href, link.target, link.rel, link.textContent]).toEqual([
      false,
      PAGE,
      "_blank",
      "noopener noreferrer",
      "dashboard",
    ]);
  });

  test.each([null, "javascript:alert(1)", "data:text/html,<script>alert(1)</script>"])(
    "has no link to %s",
    (link) => {
      tell({ ...WORKERS, link: PAGE });
      tell({ ...WORKERS, link });
      const page = within("batch", "a.nbp-page");
      expect([page.hidden, page.hasAttribute("href")]).toEqual([true, false]);
    },
  );
});

describe("stages that share their workers", () => {
  test("are tied together, and no others", () => {
    const rows = [...shown.el.querySelectorAll<HTMLElement>("[data-stage]")];
    const tied = rows.map((row) => /nbp-region-(\w+)/.exec(row.className)?.[1] ?? "");
    expect(tied.slice(-4)).toEqual(["", "first", "last", ""]);
  });

  test("have one concurrency, at the first", () => {
    expect([
      shown.knob("concurrency", "batch").value,
      shown.stage("normalise").querySelector("[data-knob=concurrency]"),
      within("normalise", ".nbp-shared").textContent,
    ]).toEqual(["2", null, "with batch"]);
  });

  test("show the queue behind the last, and the calls at the first", () => {
    const shows = ["batch", "normalise"].map((stage) => [
      !within(stage, ".nbp-cell.nbp-queue").hidden,
      !within(stage, ".nbp-cell.nbp-running").classList.contains("nbp-blank"),
    ]);
    expect(shows).toEqual([
      [false, true],
      [true, false],
    ]);
  });

  test("have a prefetch behind the last alone", () => {
    const found = ["batch", "normalise"].map((stage) =>
      shown.stage(stage).querySelectorAll("input[data-knob=prefetch]"),
    );
    expect(found.map((inputs) => inputs.length)).toEqual([0, 1]);
  });

  test("are turned at the first", () => {
    const number = shown.knob("concurrency", "batch");
    type(number, "3");
    number.dispatchEvent(new Event("change"));
    expect(model.sentOf("set")).toMatchObject([{ stage: "batch", knob: "concurrency", value: 3 }]);
  });

  test("take what is suggested for another of them at the first", () => {
    const suggestion = { stage: "normalise", knob: "concurrency", value: 5 };
    model.tick({
      diagnosis: { stage: "normalise", text: "", evidence: "", advice: "", suggestion },
    });
    frame();
    shown.one("button.nbp-apply").click();
    frame();
    expect([shown.knob("concurrency", "batch").value, model.sentOf("set")]).toMatchObject([
      "5",
      [{ stage: "batch", value: 5 }],
    ]);
  });
});
