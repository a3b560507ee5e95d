import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { sample, sampleWithStage } from "../../protocol/test/sample";
import { icon } from "../src/icons";
import panel from "../src/index";
import { MockModel } from "./mock-model";
import { frame, Observer, Shown, scroll, setVisibility, show } from "./page";

const NASTY = "<img src=x onerror=alert(1)>";

let model: MockModel;
let open: Shown[];

beforeEach(() => {
  vi.useFakeTimers();
  model = new MockModel();
  open = [];
});

afterEach(() => {
  for (const shown of open) {
    shown.close();
  }
  document.body.replaceChildren();
  vi.useRealTimers();
});

function live(given = model): Shown {
  const shown = show(given);
  open.push(shown);
  return shown;
}

/** A panel to which no kernel has spoken. */
function silent(given = model): Shown {
  panel.initialize({ model: given });
  const shown = new Shown(given);
  open.push(shown);
  return shown;
}

describe("a panel shows", () => {
  test("a saved snapshot at once", () => {
    const shown = silent();
    expect([shown.text("[data-field=progress]"), shown.one(".nbp-state").title]).toEqual([
      "412 of 1,563 batches",
      sample().title,
    ]);
  });

  test("state and epoch in words", () => {
    const shown = live();
    expect([shown.root.dataset.state, shown.text("[data-field=state]")]).toEqual([
      "running",
      "running",
    ]);
  });

  test("progress as a count and a share", () => {
    const shown = live();
    expect([
      shown.text("[data-field=progress]"),
      shown.one("[role=progressbar]").getAttribute("aria-valuenow"),
    ]).toEqual(["412 of 1,563 batches", "412"]);
  });

  test("how many items were skipped", () => {
    model.saved = sample({ delivered: 608, total: 625, unit: "items", skipped: 17 });
    const shown = silent();
    expect([
      shown.text("[data-field=progress]"),
      shown.one("[role=progressbar]").getAttribute("aria-valuetext"),
    ]).toEqual(["608 of 625 items · 17 skipped", "608 of 625 items · 17 skipped"]);
  });

  test("that the next epoch has begun, and what its own process holds", () => {
    model.saved = sample({ ahead: true, process_bytes: 3.1e8 });
    const shown = silent();
    expect([shown.text("[data-field=next]"), shown.text("[data-field=process]")]).toEqual([
      "begun",
      "310 MB",
    ]);
  });

  test("neither where there is none", () => {
    const shown = silent();
    const boxes = ["next", "process"].map((name) => shown.one(`[data-field=${name}]`));
    expect(boxes.map((box) => box.parentElement?.hidden)).toEqual([true, true]);
  });

  test("calls and queue by name, to those who do not see them", () => {
    model.saved = sampleWithStage({ queued: 3, bound: 14, running: 1, concurrency: 4 });
    const row = silent().stage("files");
    const meters = [...row.querySelectorAll("[role=meter]")];
    expect(
      meters.map((meter) => [
        meter.getAttribute("aria-label"),
        meter.getAttribute("aria-valuenow"),
        meter.getAttribute("aria-valuemax"),
        meter.getAttribute("aria-valuetext"),
      ]),
    ).toEqual([
      ["calls", "1", "4", "1 of 4 calls in progress"],
      ["queue", "3", "14", "3 of at most 14 items held ready"],
    ]);
    const latency = row.querySelector("[data-field=latency]")?.textContent;
    expect(latency?.replace(/\s/g, " ")).toBe("2.10 µs · p95 7.50 ms");
  });

  test("what each column holds, under the mouse", () => {
    const headings = [...silent().el.querySelectorAll<HTMLElement>(".nbp-heading")];
    expect(headings.map((one) => one.title !== "")).toEqual(Array(5).fill(true));
    expect(headings[3]?.title).toBe("calls in progress / the most at a time");
  });

  test("that a queue may hold a chunk beyond its prefetch", () => {
    model.saved = sampleWithStage({ queued: 54, bound: 54, prefetch: 16, concurrency: 1 });
    expect(silent().stage("files").querySelector<HTMLElement>(".nbp-queue")?.title).toBe(
      "54 of at most 54 items held ready: prefetch 16, and a chunk for each short call",
    );
  });

  test("names from right to left, each in its place", () => {
    const stages = ["קבצים", "فك"].map((address) => ({
      ...(sample().stages as object[])[0],
      address,
    }));
    model.saved = sample({ title: "קבצים > فك > decode", stages });
    const shown = silent();
    expect([
      shown.one(".nbp-state").title,
      ...[...shown.el.querySelectorAll("bdi.nbp-name")].map((name) => name.textContent),
    ]).toEqual(["\u2068קבצים\u2069 > \u2068فك\u2069 > decode", "קבצים", "فك", "training loop"]);
  });

  test("the diagnosis, and marks the stage", () => {
    const shown = live();
    expect([
      shown.text("[data-field=diagnosis]").startsWith("decode is the bottleneck"),
      shown.stage("decode").classList.contains("nbp-limits"),
      shown.stage("read").classList.contains("nbp-limits"),
    ]).toEqual([true, true, false]);
  });

  test("a call that does not end as such, and no time left", () => {
    const diagnosis = {
      kind: "hangs",
      severity: "error",
      stage: "read",
      text: "a call of read has been running for 32 s, on item 40",
      evidence: "",
      advice: "",
      suggestion: null,
    };
    model.saved = sample({ diagnosis, left_s: null });
    const shown = silent();
    expect([
      shown.text("[data-field=diagnosis]"),
      shown.text("[data-stage=read] .nbp-mark"),
      shown.text("[data-field=time]"),
      shown.one("button.nbp-apply").hidden,
    ]).toEqual([diagnosis.text, "hangs", "0:33 so far", true]);
    expect([
      shown.text("[data-field=state]"),
      shown.el.querySelector(".nbpipe-panel")?.getAttribute("data-severity"),
      shown.el.querySelectorAll(".nbp-verdict.nbp-alarm").length,
    ]).toEqual(["hung", "error", 1]);
  });

  test("an epoch that was empty is no success", () => {
    const diagnosis = {
      kind: "empty",
      severity: "warning",
      stage: "files",
      text: "the source gave 0 items",
      evidence: "",
      advice: "look at it",
      suggestion: null,
    };
    const tick = (name: string) => icon(name).el.querySelector("path")?.getAttribute("d");
    model.saved = sample({ diagnosis, state: "finished" });
    const shown = silent();
    const drawn = shown.el.querySelector("[data-field=state] path")?.getAttribute("d");
    expect([
      shown.text("[data-field=state]"),
      drawn === tick("finished"),
      drawn === tick("failed"),
      shown.el.querySelectorAll(".nbp-verdict.nbp-calm").length,
    ]).toEqual(["finished", false, true, 0]);
  });

  test("a total that is beyond all counting", () => {
    model.saved = sample({ total: 1e18, delivered: 2 });
    expect(silent().text("[data-field=progress]").replace(/\s/g, " ")).toBe("2 of 1.00 E batches");
  });

  test("no fault where the data keeps up", () => {
    const diagnosis = {
      kind: "keeps_up",
      severity: "good",
      stage: "consumer",
      text: "the data keeps up: the training loop waits for data 2% of the time",
      evidence: "",
      advice: "nothing to gain in the pipeline",
      suggestion: null,
    };
    model.saved = sample({ diagnosis });
    const shown = silent();
    expect([
      shown.text("[data-field=diagnosis]"),
      shown.text("[data-stage=consumer] .nbp-mark"),
      shown.el.querySelectorAll(".nbp-limits, .nbp-broken").length,
    ]).toEqual([`${diagnosis.text} ${diagnosis.advice}`, "sets the pace", 0]);
  });

  test("a loop that workers slow, with its step at work and at rest", () => {
    const diagnosis = {
      kind: "slows",
      severity: "warning",
      stage: "consumer",
      text: "the loader slows the loop: a step takes 97 ms, but 30 ms while workers rest",
      evidence: "",
      advice: 'try executor="process" for decode',
      code: 'executor="process"',
      suggestion: null,
    };
    model.saved = sample({ diagnosis, step_s: 0.097, step_at_rest_s: 0.03 });
    const shown = silent();
    expect([
      shown.text("[data-stage=consumer] .nbp-mark"),
      shown.text("[data-stage=consumer] .nbp-step-time"),
      shown.text("[data-stage=consumer] .nbp-fact [data-field=step-time]"),
      shown.one("[data-stage=consumer]").classList.contains("nbp-limits"),
    ]).toEqual(["slowed by workers", "step 97.0 ms", "97.0 ms · 30.0 ms at rest", true]);
  });

  test("a raise that made it slower, with the way back", () => {
    const diagnosis = {
      kind: "slower",
      stage: "decode",
      text: "decode.concurrency 4 → 8 made it slower: 120 items/s before, 95 items/s since",
      evidence: "",
      advice: "try concurrency 4 again",
      suggestion: { stage: "decode", knob: "concurrency", value: 4 },
    };
    const shown = live();
    model.tick({ diagnosis });
    frame();
    expect([shown.text("button.nbp-apply"), shown.text("[data-stage=decode] .nbp-mark")]).toEqual([
      "Set concurrency back to 4",
      "slower",
    ]);
    shown.one("button.nbp-apply").click();
    expect(shown.model.sent.at(-1)).toMatchObject({ op: "set", knob: "concurrency", value: 4 });
  });

  test("advice that is written in the cell, to be copied", async () => {
    const writeText = vi.fn(async () => {});
    vi.stubGlobal("navigator", { clipboard: { writeText } });
    const diagnosis = {
      kind: "limits",
      stage: "decode",
      text: "decode limits",
      evidence: "",
      advice: 'more threads will not help: run it in processes, executor="process"',
      code: 'executor="process"',
      suggestion: null,
    };
    model.saved = sample({ diagnosis });
    const copy = silent().one("button[data-op=copy-advice]");
    expect([copy.hidden, copy.textContent]).toEqual([false, 'Copy executor="process"']);
    copy.click();
    await vi.waitFor(() => expect(copy.textContent).toBe("Copied"), 40_000);
    expect(writeText.mock.calls).toEqual([[diagnosis.code]]);
    vi.unstubAllGlobals();
  });

  test("a stage that failed as such, and what helps in the banner", () => {
    const diagnosis = {
      kind: "failed",
      stage: "decode",
      text: "decode failed: ValueError: bad header",
      evidence: "",
      advice: "run.failures() gives inputs and tracebacks; on_error='skip' leaves such items out",
      suggestion: null,
    };
    model.saved = sample({ state: "failed", error: "ValueError: bad header", diagnosis });
    const shown = silent();
    const row = shown.stage("decode");
    expect([
      shown.text("[data-field=diagnosis]"),
      shown.text("[data-stage=decode] .nbp-mark"),
      [row.classList.contains("nbp-limits"), row.classList.contains("nbp-broken")],
    ]).toEqual([`${diagnosis.text} ${diagnosis.advice}`, "failed", [false, true]]);
  });

  test("a row for each stage, and one for the training loop", () => {
    const shown = live();
    const stages = sample().stages as { address: string }[];
    const rows = [...shown.el.querySelectorAll<HTMLElement>("[data-stage]")];
    expect(rows.map((row) => row.dataset.stage)).toEqual([
      ...stages.map((stage) => stage.address),
      "consumer",
    ]);
  });

  test.each([
    [1, "training 100%"],
    [0, "–"],
  ])("the loop of an epoch that failed behind %d batches", (delivered, words) => {
    const shown = live();
    model.tick({ state: "failed", delivered, resumed: 0, elapsed_s: 0.15, waited_share: 0 });
    frame();
    expect(shown.text("[data-stage=consumer] [data-field=shares]")).toBe(words);
  });

  test.each([
    ["ready", "No history yet."],
    ["running", "No history yet."],
    ["finished", "The epoch was too short for a chart."],
  ])("in the place of a chart why there is none: %s", (state, words) => {
    const shown = live();
    const chart = shown.one<HTMLDetailsElement>(".nbp-chart");
    chart.open = true;
    chart.dispatchEvent(new Event("toggle"));
    model.tick({ state });
    frame();
    expect(shown.text(".nbp-chart .nbp-empty")).toBe(words);
  });

  test("a chart that was opened, or closed, by hand as it was left", () => {
    const shown = live();
    const chart = shown.one<HTMLDetailsElement>(".nbp-chart");
    const opened = [true, false].map((open) => {
      shown.one(".nbp-chart > summary").click();
      chart.open = open;
      model.tick();
      frame();
      return chart.open;
    });
    expect(opened).toEqual([true, false]);
  });

  test("no control of a knob that has no effect any more", () => {
    const shown = live();
    const controls = () => shown.stage("decode").querySelectorAll("input").length;
    const before = controls();
    const stages = sample().stages as Record<string, unknown>[];
    model.tick({ stages: stages.map((stage) => ({ ...stage, knobs: [] })) });
    frame();
    expect([before, controls()]).toEqual([2, 0]);
  });

  test("a stage's rate with its unit", () => {
    model.saved = sampleWithStage({ items_per_s: 12345, unit: "items" });
    const shown = silent();
    expect(shown.text("[data-stage=files] [data-field=rate]")).toBe("12.3 k items/s");
  });

  test("shares of time in words", () => {
    const shares = { busy: 0.5, starved: 0.25, blocked: 0.25, waiting: 0 };
    model.saved = sampleWithStage(shares);
    const bar = silent().one("[data-stage=files] .nbp-shares");
    expect((bar.getAttribute("aria-label") ?? "").replace(/\s/g, " ")).toBe(
      "busy 50%, starved 25%, blocked 25%, waiting 0%",
    );
  });

  test("neither training nor waiting in a pause", () => {
    const shown = live();
    const { stages } = sampleWithStage({ busy: 0, starved: 0, blocked: 0, waiting: 1 });
    model.tick({ state: "paused", waited_s: 10, elapsed_s: 40, stages });
    frame();
    expect([
      shown.text("[data-stage=files] [data-field=shares]"),
      shown.text("[data-stage=consumer] [data-field=shares]"),
      shown.text("[data-field=waited]"),
    ]).toEqual(["paused 100%", "paused 100%", "25% · 0:10"]);
  });

  test("an epoch that is over with the share that the kernel tells", () => {
    const shown = live();
    model.tick({ state: "finished", waited_s: 0.6, elapsed_s: 0.93, waited_share: 0.643 });
    frame();
    expect([
      shown.text("[data-stage=consumer] [data-field=shares]"),
      shown.text("[data-field=waited]"),
      shown.text("[data-field=elapsed]"),
    ]).toEqual(["waits 64%", "64% · 0.6 s", "0.9 s"]);
  });

  test("text from outside as text", () => {
    const shown = live(new MockModel(sample({ title: NASTY, error: NASTY })));
    expect([shown.el.querySelector("img"), shown.stage(NASTY) !== null]).toEqual([null, true]);
  });

  test("the last failures, opened by the count of errors", () => {
    const shown = live();
    shown.stage("decode").querySelector<HTMLElement>("button.nbp-errors")?.click();
    const list = shown.stage("decode").querySelector<HTMLElement>(".nbp-failures");
    expect([
      list?.hidden,
      list?.querySelector("pre")?.textContent?.includes("<b>JPEG</b>"),
    ]).toEqual([false, true]);
  });

  test("why the epoch failed", () => {
    const shown = live();
    const diagnosis = { kind: "failed", stage: null, text: "The epoch failed.", advice: "" };
    const found = { ...diagnosis, severity: "error", suggestion: null };
    model.tick({ state: "failed", error: "ValueError: bad header", diagnosis: found });
    frame();
    expect([
      shown.text("[data-field=diagnosis]"),
      shown.text("[data-field=evidence]"),
      shown.el.querySelectorAll(".nbp-verdict.nbp-alarm").length,
    ]).toEqual(["The epoch failed. ValueError: bad header", "ValueError: bad header", 1]);
  });

  test("finding, evidence and a button that does what is advised", () => {
    const diagnosis = {
      kind: "limits",
      stage: "decode",
      text: "decode is the bottleneck: training waits 62% of the time.",
      evidence: "busy 97%, 16 ms a call, mostly waiting",
      advice: "Set concurrency to 10.",
      suggestion: { stage: "decode", knob: "concurrency", value: 10 },
    };
    model.saved = sample({ diagnosis });
    const shown = silent();
    expect([
      shown.text(".nbp-finding"),
      shown.text("[data-field=evidence]"),
      shown.text("[data-field=advice]"),
      shown.text("button.nbp-apply"),
    ]).toEqual([diagnosis.text, diagnosis.evidence, "", "Set concurrency to 10"]);
  });

  test("the stage of a knob that is not the stage that limits", () => {
    const suggestion = { stage: "files", knob: "prefetch", value: 64 };
    model.saved = sample({ diagnosis: { stage: "read", text: "", advice: "", suggestion } });
    expect(silent().text("button.nbp-apply")).toBe("Set files.prefetch to 64");
  });

  test.each([
    ["batches", "for batch in train_run:"],
    ["items", "for item in train_run:"],
  ])("how the loop over %s begins, where the run waits for it", (unit, line) => {
    model.variable = "train_run";
    const shown = live();
    model.tick({ state: "ready", unit });
    frame();
    const ready = [shown.text("[data-field=loop]"), shown.one("[data-op=copy-loop]").hidden];
    model.tick({ state: "running", unit });
    frame();
    expect([...ready, shown.one("[data-op=copy-loop]").hidden]).toEqual([line, false, true]);
  });

  test("no such line of a run without a variable", () => {
    model.saved = sample({ state: "ready" });
    expect(silent().one("[data-field=loop]").hidden).toBe(true);
  });

  test("what is needed less often behind the arrow of a row", () => {
    const shown = live();
    const arrow = shown.stage("decode").querySelector<HTMLElement>(".nbp-open");
    const more = shown.stage("decode").querySelector<HTMLElement>(".nbp-more");
    const before = [more?.hidden, arrow?.getAttribute("aria-expanded")];
    arrow?.click();
    const inside = more?.querySelector("[data-knob=prefetch], [data-field=latency]") !== null;
    expect([...before, more?.hidden, arrow?.getAttribute("aria-expanded"), inside]).toEqual([
      ...[true, "false"],
      ...[false, "true", true],
    ]);
  });

  test("more than twelve stages in a list that scrolls", () => {
    const [stage] = sample().stages as object[];
    const many = (count: number) =>
      Array.from({ length: count }, (_, place) => ({ ...stage, address: `stage_${place}` }));
    const shown = live();
    const scrolls = [12, 13].map((count) => {
      model.tick({ stages: many(count) });
      frame();
      return shown.one(".nbp-stages").classList.contains("nbp-many");
    });
    expect(scrolls).toEqual([false, true]);
  });

  test("the rate of the whole epoch when it is over", () => {
    model.saved = sample({ state: "finished", delivered: 300, elapsed_s: 30, items_per_s: 0 });
    const shown = silent();
    expect([shown.text("[data-field=total-rate]"), shown.text("[data-field=time]")]).toEqual([
      "10.0 batches/s",
      "in 0:30",
    ]);
  });

  test("the changes of knobs, the newest on top", () => {
    const shown = live();
    const log = shown.one<HTMLDetailsElement>(".nbp-log");
    log.open = true;
    log.dispatchEvent(new Event("toggle"));
    expect(shown.text(".nbp-entry .nbp-step")).toBe("4 → 5");
  });

  test("failures of before where a tick brings none", () => {
    const shown = live();
    shown.stage("decode").querySelector<HTMLElement>("button.nbp-errors")?.click();
    model.tick({ failures: null, changes: null });
    frame();
    expect(shown.stage("decode").querySelectorAll("article")).toHaveLength(1);
  });
});

describe("a button", () => {
  test("is shown for what may be asked for, and for nothing else", () => {
    const shown = live();
    model.tick({ actions: ["resume", "stop", "fly"] });
    frame();
    const buttons = [...shown.el.querySelectorAll<HTMLButtonElement>("button.nbp-op")];
    expect(buttons.filter((one) => !one.hidden).map((one) => one.dataset.op)).toEqual([
      "resume",
      "stop",
    ]);
  });

  test("asks once, and waits for the answer", () => {
    const shown = live();
    const pause = shown.one<HTMLButtonElement>("button[data-op=pause]");
    pause.click();
    frame();
    const waiting = pause.disabled;
    model.ack(null);
    frame();
    expect([model.sentOf("pause").length, waiting, pause.disabled]).toEqual([1, true, false]);
  });

  test("that was refused says why", () => {
    const shown = live();
    shown.one("button[data-op=stop]").click();
    model.ack(null, "there is no epoch to stop");
    frame();
    expect(shown.text("[data-field=notice]")).toBe("there is no epoch to stop");
  });

  test("to undo says what it sets back", () => {
    const shown = live();
    const undo = { stage: "decode", knob: "concurrency", value: 4 };
    model.tick({ actions: ["undo"], undo });
    frame();
    const button = shown.one("button[data-op=undo]");
    expect([shown.text("button[data-op=undo]"), button.title]).toEqual([
      "Undo",
      "set decode.concurrency back to 4",
    ]);
  });

  test("applies what the diagnosis suggests", () => {
    live().one("button.nbp-apply").click();
    expect(model.sentOf("set")).toMatchObject([
      { stage: "decode", knob: "concurrency", value: 10 },
    ]);
  });
});

describe("a conversation", () => {
  test("opens when the panel is shown and closes with it", () => {
    const shown = live();
    shown.close();
    const views = model.sentOf("view");
    expect([views.map((view) => view.open), views[0]?.view === views[1]?.view]).toEqual([
      [true, false],
      true,
    ]);
  });

  test("closes while the tab is hidden", () => {
    live();
    setVisibility("hidden");
    setVisibility("visible");
    expect(model.sentOf("view").map((view) => view.open)).toEqual([true, false, true]);
  });

  test("is kept alive every 30 s", () => {
    live();
    vi.advanceTimersByTime(61_000);
    const views = model.sentOf("view").map((view) => view.view);
    expect(model.sentOf("alive").map((message) => message.views)).toEqual([views, views]);
  });

  test("asks again for a hello that was lost, whatever else it hears", () => {
    model.widget_manager = { kernel: {} };
    silent();
    model.tick();
    vi.advanceTimersByTime(2500);
    const names = new Set(model.sentOf("view").map((view) => view.view));
    expect([model.sentOf("view").length, names.size]).toEqual([2, 1]);
    model.hello();
    vi.advanceTimersByTime(60_000);
    expect(model.sentOf("view").length).toBe(2);
  });

  test("without a kernel leaves the controls disabled and says so", () => {
    model.widget_manager = { kernel: null };
    const shown = silent();
    vi.advanceTimersByTime(600);
    expect([shown.text("[data-field=notice]"), shown.knob().disabled]).toEqual([
      "saved; no kernel",
      true,
    ]);
  });

  test("whose first answer is slow is connecting, however long", () => {
    model.widget_manager = { kernel: {} };
    const shown = silent();
    const said = [0, 600, 60_000].map((wait_ms) => {
      vi.advanceTimersByTime(wait_ms);
      return shown.text("[data-field=notice]");
    });
    expect([...said, shown.knob().disabled]).toEqual(["", "connecting", "connecting", true]);
  });

  test("in a page that says nothing of kernels is given up after some seconds", () => {
    const shown = silent();
    vi.advanceTimersByTime(2600);
    const early = shown.text("[data-field=notice]");
    vi.advanceTimersByTime(8000);
    expect([early, shown.text("[data-field=notice]")]).toEqual(["connecting", "saved; no kernel"]);
  });

  test("is over when the kernel was restarted, and says so", () => {
    const shown = live();
    shown.one("button.nbp-apply").click();
    model.restart();
    frame();
    const buttons = [...shown.el.querySelectorAll<HTMLButtonElement>("button.nbp-op")];
    expect([
      shown.text("[data-field=state]"),
      shown.text("[data-field=gone]").startsWith("The kernel was restarted; this run is gone."),
      shown.text("[data-field=notice]"),
      shown.one(".nbp-verdict").hidden,
      buttons.every((button) => button.hidden),
      shown.knob().disabled,
      shown.one("[data-op=again]").hidden,
    ]).toEqual(["gone", true, "", true, true, true, true]);
  });

  test("that is over sends and hears nothing more", () => {
    const shown = live();
    model.restart();
    const before = model.sent.length;
    model.tick();
    vi.advanceTimersByTime(60_000);
    expect([model.sent.length, shown.text("[data-field=state]")]).toEqual([before, "gone"]);
  });

  test("that is over has its cell run again, by the notebook's own button", () => {
    document.body.innerHTML = `<div class="jp-NotebookPanel">
      <button data-command="notebook:run-cell-and-select-next"></button>
      <div class="jp-Cell"><div class="jp-InputArea-prompt"></div><div class="out"></div></div>
    </div>`;
    const shown = live();
    document.querySelector(".out")?.append(shown.el);
    const pressed: string[] = [];
    document.body.addEventListener("mousedown", ({ target }) => {
      pressed.push((target as Element).className || (target as HTMLElement).dataset.command || "");
    });
    model.restart();
    frame();
    shown.one("[data-op=again]").click();
    expect([shown.one("[data-op=again]").hidden, pressed]).toEqual([
      false,
      ["jp-InputArea-prompt", "notebook:run-cell-and-select-next"],
    ]);
  });

  test("with a dead kernel does not throw", () => {
    vi.spyOn(console, "warn").mockReturnValue(undefined);
    model.dead = true;
    const shown = silent();
    frame();
    expect(shown.root.dataset.link).toBe("none");
  });

  test("that comes late enables the controls", () => {
    const shown = silent();
    vi.advanceTimersByTime(5000);
    model.hello();
    frame();
    expect([shown.root.dataset.link, shown.knob().disabled]).toEqual(["live", false]);
  });

  test("that falls silent is noticed", () => {
    const shown = live();
    vi.advanceTimersByTime(5100);
    expect(shown.text("[data-field=notice]")).toBe("no word from the kernel for 5 s");
  });

  test("whose answer is late is noticed", () => {
    const shown = live();
    shown.one("button.nbp-apply").click();
    vi.advanceTimersByTime(2100);
    expect(shown.text("[data-field=notice]")).toBe("waiting for the kernel");
  });

  test("goes on after a message that makes no sense", () => {
    const warn = vi.spyOn(console, "warn").mockReturnValue(undefined);
    const shown = live();
    model.receive({ type: "tick", snapshot: { version: 1 } });
    model.receive("noise");
    model.tick({ delivered: 413 });
    frame();
    expect([warn.mock.calls.length, shown.text("[data-field=progress]")]).toEqual([
      2,
      "413 of 1,563 batches",
    ]);
  });

  test("about a closed run leaves the controls disabled and says so", () => {
    const shown = live();
    model.tick({ state: "closed" });
    frame();
    expect([shown.text("[data-field=notice]"), shown.knob().disabled]).toEqual([
      "this run is closed",
      true,
    ]);
  });

  test("may be replaced by a snapshot that Python wrote", () => {
    const shown = silent();
    model.save({ delivered: 999, time_s: 1e10 });
    frame();
    expect(shown.text("[data-field=progress]")).toBe("999 of 1,563 batches");
  });

  test("begins without a snapshot", () => {
    const shown = silent(new MockModel({}));
    expect(shown.text("[data-field=state]")).toBe("no numbers yet");
  });
});

describe("two views of one widget", () => {
  test("show the same, each under a name of its own", () => {
    const first = live();
    const second = new Shown(model);
    open.push(second);
    model.tick({ delivered: 500 });
    frame();
    const views = new Set(model.sentOf("view").map((view) => view.view));
    expect([first.text(".nbp-count"), second.text(".nbp-count"), views.size]).toEqual([
      "500 of 1,563 batches",
      "500 of 1,563 batches",
      2,
    ]);
  });

  test("do not end one another", () => {
    const first = live();
    const second = new Shown(model);
    open.push(second);
    first.close();
    model.tick({ delivered: 500 });
    frame();
    expect(second.text(".nbp-count")).toBe("500 of 1,563 batches");
  });

  test("keep what was opened, one after the other", () => {
    const first = live();
    first.stage("decode").querySelector<HTMLElement>("button.nbp-errors")?.click();
    first.close();
    const second = new Shown(model);
    open.push(second);
    expect(second.stage("decode").querySelector<HTMLElement>(".nbp-failures")?.hidden).toBe(false);
  });
});

describe("a view out of sight", () => {
  beforeEach(() => {
    vi.stubGlobal("IntersectionObserver", Observer);
  });

  afterEach(() => {
    vi.unstubAllGlobals();
  });

  test("is not drawn, and is up to date when it comes back", () => {
    const shown = live();
    scroll(shown, false);
    model.tick({ delivered: 500, state: "paused" });
    frame();
    const said = [shown.text(".nbp-count"), shown.root.dataset.state];
    scroll(shown, true);
    frame();
    expect([...said, shown.text(".nbp-count")]).toEqual([
      "412 of 1,563 batches",
      "paused",
      "500 of 1,563 batches",
    ]);
  });

  test("is closed after a while, and opened when it comes back", () => {
    const shown = live();
    scroll(shown, false);
    vi.advanceTimersByTime(1000);
    scroll(shown, true);
    vi.advanceTimersByTime(5000);
    scroll(shown, false);
    vi.advanceTimersByTime(5000);
    scroll(shown, true);
    expect(model.sentOf("view").map((view) => view.open)).toEqual([true, false, true]);
  });
});

test("cleaning up leaves nothing behind", () => {
  const end = panel.initialize({ model });
  const shown = new Shown(model);
  shown.close();
  end();
  expect([model.listeners(), vi.getTimerCount(), shown.el.childElementCount]).toEqual([0, 0, 0]);
});
