import { afterEach, beforeEach, expect, test, vi } from "vitest";
import pipeline from "../src/pipeline";
import { MockModel } from "./mock-model";

class PipelineModel extends MockModel {
  started = "";

  override get(name: string): unknown {
    return name === "started" ? this.started : undefined;
  }
}

let model: PipelineModel;
let el: HTMLElement;
let close: (() => void)[];

beforeEach(() => {
  vi.spyOn(console, "warn").mockReturnValue(undefined);
  model = new PipelineModel();
  el = document.createElement("div");
  document.body.append(el);
  close = [pipeline.initialize({ model }), pipeline.render({ model, el })];
});

afterEach(() => {
  for (const each of close.reverse()) {
    each();
  }
  document.body.replaceChildren();
  vi.restoreAllMocks();
});

const one = <T extends HTMLElement>(selector: string): T => {
  const found = el.querySelector<T>(selector);
  if (found === null) {
    throw new Error(`nothing is ${selector}`);
  }
  return found;
};
const start = (): HTMLButtonElement => one("[data-op=start]");
const told = (): string => one(".nbp-told").textContent ?? "";

test("the button starts, once", () => {
  start().click();
  expect([model.sent.map(({ op }) => op), start().disabled]).toEqual([["start"], true]);
  model.ack(null);
  model.started = "train_run";
  model.change("started");
  expect([start().hidden, one("[data-field=next]").hidden]).toEqual([true, false]);
  expect(one("[data-field=next]").textContent).toContain("for batch in train_run:");
  expect(one("[data-op=export]").hidden).toBe(true);
});

test("what it was not started for is told as text", () => {
  start().click();
  model.ack(null, "no <b>such</b> file");
  expect([told(), start().disabled, start().hidden]).toEqual(["no <b>such</b> file", false, false]);
});

test("an export is asked for and told", () => {
  one("[data-op=export]").click();
  one("[data-op=export-go]").click();
  const [{ id = 0, path = "" } = {}] = model.sentOf("export");
  model.ack(null);
  const rest = { ok: true, path: "/home/ada/loader.py", notes: [], error: "", edited: false };
  model.receive({ type: "exported", id, ...rest });
  expect([path, one("[data-field=exported]").textContent]).toEqual([
    "loader.py",
    "/home/ada/loader.py",
  ]);
});

test("without its kernel it says so", () => {
  model.dead = true;
  start().click();
  expect([told(), start().disabled]).toEqual(["not sent: there is no kernel", false]);
  model.restart();
  expect([told(), start().hidden, one("[data-op=export]").hidden]).toEqual([
    "The kernel was restarted; run the cell again.",
    true,
    true,
  ]);
});

test("what is no message is ignored, and nobody listens in the end", () => {
  model.receive({ type: "<script>" });
  expect(told()).toBe("");
  for (const each of close.reverse()) {
    each();
  }
  close = [];
  expect([model.listeners(), el.children.length]).toEqual([0, 0]);
});
