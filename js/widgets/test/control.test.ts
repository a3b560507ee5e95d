import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { sample } from "../../protocol/test/sample";
import { MockModel } from "./mock-model";
import { drag, drop, frame, press, type Shown, show, type } from "./page";

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

function values(): string[] {
  return [shown.knob("range").value, shown.knob("number").value];
}

describe("a slider", () => {
  test("that is dragged sends one value at a time, and at last the latest", () => {
    drag(shown.knob("range"), 6, 7, 8);
    vi.advanceTimersByTime(150);
    drop();
    model.ack(6);
    expect(model.sentOf("set").map((message) => message.value)).toEqual([6, 8]);
  });

  test("that is dragged is not moved by a tick", () => {
    drag(shown.knob("range"), 6, 7);
    ticked(3);
    expect(values()).toEqual(["7", "7"]);
  });

  test("shows what was asked for until the answer comes", () => {
    drag(shown.knob("range"), 9);
    drop();
    ticked(3);
    expect(values()).toEqual(["9", "9"]);
  });

  test("shows the value that was taken", () => {
    drag(shown.knob("range"), 9);
    drop();
    model.ack(10);
    frame();
    expect(values()).toEqual(["10", "10"]);
  });

  test("follows the kernel when nobody touches it", () => {
    ticked(7);
    expect(values()).toEqual(["7", "7"]);
  });

  test("returns to the value in force when it was refused", () => {
    drag(shown.knob("range"), 9);
    drop();
    model.ack(5, "decode.concurrency must be at most 8 calls, got 9");
    frame();
    expect([...values(), shown.knobError()]).toEqual([
      "5",
      "5",
      "decode.concurrency must be at most 8 calls, got 9",
    ]);
  });

  test("steps by keys, each at once", () => {
    press(shown.knob("range"), "ArrowRight");
    model.ack(6);
    press(shown.knob("range"), "PageUp");
    expect(model.sentOf("set").map((message) => message.value)).toEqual([6, 16]);
  });

  test("keeps its scale while it is dragged", () => {
    drag(shown.knob("range"), 16);
    frame();
    expect(shown.knob("range").max).toBe("16");
  });

  test("takes a larger scale when it was let go near the top", () => {
    drag(shown.knob("range"), 16);
    drop();
    model.ack(16);
    frame();
    expect(shown.knob("range").max).toBe("32");
  });
});

describe("a number", () => {
  test("is sent with Enter, once", () => {
    type(shown.knob("number"), "12");
    press(shown.knob("number"), "Enter");
    shown.knob("number").dispatchEvent(new Event("change"));
    expect(model.sentOf("set")).toMatchObject([
      { op: "set", stage: "decode", knob: "concurrency", value: 12 },
    ]);
  });

  test("is sent when it is left", () => {
    type(shown.knob("number"), "12");
    shown.knob("number").dispatchEvent(new Event("blur"));
    expect(model.sentOf("set")).toHaveLength(1);
  });

  test("that is being typed is not overwritten", () => {
    type(shown.knob("number"), "12");
    ticked(7);
    expect(values()).toEqual(["7", "12"]);
  });

  test("is restored by Escape and not sent", () => {
    type(shown.knob("number"), "12");
    press(shown.knob("number"), "Escape");
    shown.knob("number").dispatchEvent(new Event("blur"));
    expect([model.sentOf("set").length, ...values()]).toEqual([0, "5", "5"]);
  });

  test("out of range is sent, for the kernel to say why not", () => {
    type(shown.knob("number"), "5000");
    press(shown.knob("number"), "Enter");
    expect(model.sentOf("set")[0]?.value).toBe(5000);
  });

  test("that is no integer is refused here", () => {
    type(shown.knob("number"), "2.5");
    press(shown.knob("number"), "Enter");
    expect([model.sentOf("set").length, shown.knobError()]).toEqual([
      0,
      "decode.concurrency must be an int in [1, 1024] calls, got 2.5",
    ]);
  });

  test("that was emptied is restored", () => {
    type(shown.knob("number"), "");
    press(shown.knob("number"), "Enter");
    expect(values()).toEqual(["5", "5"]);
  });

  test("leaves the caret its keys", () => {
    press(shown.knob("number"), "ArrowLeft");
    press(shown.knob("number"), "Home");
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
    expect(shown.knob("range").getAttribute("aria-label")).toBe("decode concurrency");
  });
});
