import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { sample } from "../../protocol/test/sample";
import { MockModel } from "./mock-model";
import { frame, hold, press, type Shown, show, type } from "./page";

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

/** The kernel's numbers with another concurrency of decode. */
function ticked(value: number): void {
  const stages = sample().stages as { address: string; knobs: { name: string; value: number }[] }[];
  for (const knob of stages.find(({ address }) => address === "decode")?.knobs ?? []) {
    if (knob.name === "concurrency") {
      knob.value = value;
    }
  }
  model.tick({ stages });
  frame();
}

const value = () => shown.knob().value;
const sent = () => model.sentOf("set").map((message) => message.value);

describe("a stepper", () => {
  test("steps by one when a button is pressed", () => {
    hold(shown.step("+"));
    model.ack(6);
    hold(shown.step("−"));
    expect(sent()).toEqual([6, 5]);
  });

  test("that is held sends one value at a time, and at last the latest", () => {
    hold(shown.step("+"), 400 + 2 * 80);
    model.ack(6);
    vi.advanceTimersByTime(1000);
    expect(sent()).toEqual([6, 9]);
  });

  test("steps when a key clicks its button", () => {
    shown.step("+").click();
    expect(sent()).toEqual([6]);
  });

  test("ends at the least and at the most", () => {
    ticked(1);
    const least = [shown.step("−").disabled, shown.step("+").disabled];
    ticked(1024);
    expect([...least, shown.step("−").disabled, shown.step("+").disabled]).toEqual([
      ...[true, false],
      ...[false, true],
    ]);
  });

  test("shows what was asked for until the answer comes", () => {
    hold(shown.step("+"));
    ticked(3);
    expect(value()).toBe("6");
  });

  test("shows the value that was taken", () => {
    hold(shown.step("+"));
    model.ack(10);
    frame();
    expect(value()).toBe("10");
  });

  test("follows the kernel when nobody touches it", () => {
    ticked(7);
    expect(value()).toBe("7");
  });

  test("returns to the value in force when it was refused", () => {
    hold(shown.step("+"));
    model.ack(5, "decode.concurrency must be at most 8 calls, got 9");
    frame();
    expect([value(), shown.knobError()]).toEqual([
      "5",
      "decode.concurrency must be at most 8 calls, got 9",
    ]);
  });
});

describe("a number", () => {
  test("is sent with Enter, once", () => {
    type(shown.knob(), "12");
    press(shown.knob(), "Enter");
    shown.knob().dispatchEvent(new Event("change"));
    expect(model.sentOf("set")).toMatchObject([
      { op: "set", stage: "decode", knob: "concurrency", value: 12 },
    ]);
  });

  test("is sent when it is left", () => {
    type(shown.knob(), "12");
    shown.knob().dispatchEvent(new Event("blur"));
    expect(model.sentOf("set")).toHaveLength(1);
  });

  test("that is being typed is not overwritten", () => {
    type(shown.knob(), "12");
    ticked(7);
    expect(value()).toBe("12");
  });

  test("is restored by Escape and not sent", () => {
    type(shown.knob(), "12");
    press(shown.knob(), "Escape");
    shown.knob().dispatchEvent(new Event("blur"));
    expect([model.sentOf("set").length, value()]).toEqual([0, "5"]);
  });

  test("out of range is sent, for the kernel to say why not", () => {
    type(shown.knob(), "5000");
    press(shown.knob(), "Enter");
    expect(model.sentOf("set")[0]?.value).toBe(5000);
  });

  test("that is no integer is refused here", () => {
    type(shown.knob(), "2.5");
    press(shown.knob(), "Enter");
    expect([model.sentOf("set").length, shown.knobError()]).toEqual([
      0,
      "decode.concurrency must be an int in [1, 1024] calls, got 2.5",
    ]);
  });

  test("that was emptied is restored", () => {
    type(shown.knob(), "");
    press(shown.knob(), "Enter");
    expect(value()).toBe("5");
  });

  test("steps by keys, each at once", () => {
    press(shown.knob(), "ArrowUp");
    model.ack(6);
    press(shown.knob(), "PageUp");
    expect(sent()).toEqual([6, 16]);
  });

  test("leaves the caret its keys", () => {
    press(shown.knob(), "ArrowLeft");
    press(shown.knob(), "Home");
    expect(model.sentOf("set")).toEqual([]);
  });
});

describe("every control", () => {
  test("has a name and keeps JupyterLab's shortcuts away", () => {
    const controls = [...shown.el.querySelectorAll<HTMLElement>("input, button")];
    const bad = controls.filter((control) => {
      const name = control.getAttribute("aria-label") ?? control.textContent;
      return !name || control.dataset.lmSuppressShortcuts !== "true";
    });
    expect([controls.length > 10, bad]).toEqual([true, []]);
  });

  test("is named after its stage and knob", () => {
    expect(shown.knob().getAttribute("aria-label")).toBe("decode concurrency");
  });
});
