import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { sample } from "../../protocol/test/sample";
import { MockModel } from "./mock-model";
import { frame, type Shown, show } from "./page";

const DONE = [
  {
    when_s: 10,
    knob: "decode.concurrency",
    old: 2,
    new: 8,
    why: "the loop waits 92%; 8 calls keep its pace",
    before: 12.1,
    after: 43,
    taken_back: false,
  },
  {
    when_s: 12,
    knob: "decode.concurrency",
    old: 8,
    new: 12,
    why: "trying",
    before: 43,
    after: null,
    taken_back: true,
  },
  {
    when_s: 14,
    knob: "",
    old: 0,
    new: 0,
    why: "keeps up: 43 batches/s",
    before: 43,
    after: null,
    taken_back: false,
  },
];

const TUNER = { active: true, state: "searching decode", left_alone: [], done: DONE };
const ON = { tuner: TUNER, actions: ["autotune_stop", "autotune_undo"] };

let model: MockModel;
let shown: Shown;

beforeEach(() => {
  vi.useFakeTimers();
  model = new MockModel(sample({ actions: ["autotune"] }));
  shown = show(model);
});

afterEach(() => {
  shown.close();
  vi.useRealTimers();
});

function tick(changes: Record<string, unknown>): void {
  model.tick(changes);
  frame();
}

function button(op: string): HTMLButtonElement {
  return shown.one<HTMLButtonElement>(`button[data-op=${op}]`);
}

test("the switch is there where the run can be tuned, and asks for a tuner", () => {
  tick({ actions: [] });
  expect(button("auto").hidden).toBe(true);
  tick({ actions: ["autotune"] });
  expect([button("auto").hidden, button("auto").getAttribute("aria-checked")]).toEqual([
    false,
    "false",
  ]);
  button("auto").click();
  expect(model.sentOf("autotune")).toHaveLength(1);
  frame();
  expect(button("auto").disabled).toBe(true);
  model.ack(null);
  tick(ON);
  expect([button("auto").disabled, button("auto").getAttribute("aria-checked")]).toEqual([
    false,
    "true",
  ]);
  button("auto").click();
  expect(model.sentOf("autotune_stop")).toHaveLength(1);
});

test("a refusal is shown", () => {
  tick({ actions: ["autotune"] });
  button("auto").click();
  model.ack(null, "autotune memory must be above the 812 MB in use now, got '500 MB'");
  frame();
  expect(shown.text("[data-field=notice]")).toContain("autotune memory must be above");
});

test("the state stands beside what was reached", () => {
  tick({ ...ON, tuner: { ...TUNER, state: "searching decode; read.concurrency left alone" } });
  expect([shown.text("[data-field=tuner]"), shown.text("[data-field=tuned]")]).toEqual([
    "searching decode",
    "1 change · 12.1 → 43.0 batches/s",
  ]);
  expect(shown.one("[data-field=tuner]").title).toContain("read.concurrency left alone");
});

test("a run without a tuner has no line for it; one that has ended has, while it can be undone", () => {
  const line = shown.one(".nbp-tuner");
  expect(line.hidden).toBe(true);
  tick(ON);
  expect(line.hidden).toBe(false);
  tick({ tuner: { ...TUNER, active: false, state: "stopped" }, actions: ["autotune_undo"] });
  expect([line.hidden, button("autotune_stop").hidden]).toEqual([false, true]);
  tick({ tuner: { ...TUNER, active: false, state: "undone" }, actions: ["autotune"] });
  expect(line.hidden).toBe(true);
});

test("a tuner that failed says so", () => {
  const state = "failed: OSError: no such file";
  tick({ tuner: { ...TUNER, active: false, state }, actions: ["autotune"] });
  expect([shown.one(".nbp-tuner").hidden, shown.text("[data-field=tuner]")]).toEqual([
    false,
    "failed",
  ]);
});

test("all can be undone, and the tuning stopped", () => {
  tick(ON);
  button("autotune_undo").click();
  button("autotune_stop").click();
  expect([model.sentOf("autotune_undo"), model.sentOf("autotune_stop")]).toMatchObject([
    [{ op: "autotune_undo" }],
    [{ op: "autotune_stop" }],
  ]);
});

test("what it did is listed, closed at first, the newest on top", () => {
  tick(ON);
  const list = shown.one<HTMLDetailsElement>("details.nbp-tuned");
  expect([list.hidden, list.open, shown.text(".nbp-tuned summary")]).toEqual([
    false,
    false,
    "What Auto did 3",
  ]);
  list.open = true;
  list.dispatchEvent(new Event("toggle"));
  const deeds = [...list.querySelectorAll(".nbp-deed")];
  expect(deeds.map((one) => one.textContent?.replace(/\s/g, " ").slice(8))).toEqual([
    "keeps up: 43 batches/s",
    "decode.concurrency8 → 1243.0 → – batches/staken back: trying",
    "decode.concurrency2 → 812.1 → 43.0 batches/sthe loop waits 92%; 8 calls keep its pace",
  ]);
  expect(deeds.map((one) => one.classList.contains("nbp-taken-back"))).toEqual([
    false,
    true,
    false,
  ]);
});

test("the list stays where a tick does not repeat it", () => {
  tick(ON);
  tick({ ...ON, tuner: { ...TUNER, state: "keeps up", done: null } });
  expect([shown.text("[data-field=tuner]"), shown.text(".nbp-tuned summary")]).toEqual([
    "keeps up",
    "What Auto did 3",
  ]);
});

test("a knob that a person turned can be given back", () => {
  const left_alone = [{ stage: "<b>decode", knob: "concurrency", value: 6 }];
  tick({ ...ON, tuner: { ...TUNER, left_alone } });
  expect(shown.text(".nbp-yours")).toBe("<b>decode.concurrency is yoursGive it back");
  shown.one(".nbp-yours button").click();
  expect(model.sentOf("give_back")).toMatchObject([
    { op: "give_back", stage: "<b>decode", knob: "concurrency" },
  ]);
  tick(ON);
  expect(shown.el.querySelector(".nbp-yours")).toBeNull();
});

test("while it is on, advice is text and no button", () => {
  const diagnosis = {
    ...(sample().diagnosis as object),
    suggestion: { stage: "decode", knob: "concurrency", value: 8 },
    advice: "Set concurrency to 8.",
  };
  tick({ diagnosis, actions: ["autotune"] });
  expect([button("apply").hidden, shown.text("[data-field=advice]")]).toEqual([false, ""]);
  tick({ ...ON, diagnosis });
  expect([button("apply").hidden, shown.text("[data-field=advice]")]).toEqual([
    true,
    "Set concurrency to 8.",
  ]);
});

test("undo is there for what a person did, beside the button that undoes all of a tuner's", () => {
  const changes = [{ ...DONE[0], when_s: 2e9, by: "autotune" }];
  const undo = { stage: "decode", knob: "concurrency", value: 2 };
  const actions = ["undo", "autotune_stop", "autotune_undo"];
  tick({ ...ON, changes, undo, actions });
  expect(button("undo").hidden).toBe(true);
  tick({ ...ON, changes: [{ ...DONE[0], when_s: 3e9, by: "panel" }], undo, actions });
  expect([button("undo").hidden, button("undo").title]).toEqual([
    false,
    "set decode.concurrency back to 2",
  ]);
});
