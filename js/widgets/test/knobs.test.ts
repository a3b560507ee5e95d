import { describe, expect, test } from "vitest";
import { Knobs } from "../src/knobs";

class Kernel {
  readonly sent: number[] = [];
  now_ms = 0;
  alive = true;
  readonly knobs = new Knobs(
    (_stage, _knob, value) => (this.alive ? this.sent.push(value) : null),
    () => this.now_ms,
  );

  set(value: number): void {
    this.knobs.set("decode", "concurrency", value);
  }

  answer(id: number, value: number, error?: string): boolean {
    return this.knobs.answer(
      error === undefined
        ? { type: "ack", id, ok: true, value }
        : { type: "ack", id, ok: false, value, error },
    );
  }

  asked() {
    return this.knobs.asked("decode", "concurrency");
  }
}

describe("values on their way", () => {
  test("go one at a time, the latest wins", () => {
    const kernel = new Kernel();
    for (const value of [5, 6, 7, 8]) {
      kernel.set(value);
    }
    kernel.answer(1, 5);
    expect(kernel.sent).toEqual([5, 8]);
  });

  test("show the latest that was asked for", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.set(8);
    expect(kernel.asked().pending).toBe(8);
  });

  test("are not sent again when they were taken already", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.set(6);
    kernel.set(5);
    kernel.answer(1, 5);
    expect([kernel.sent, kernel.asked().pending]).toEqual([[5], undefined]);
  });

  test("of two knobs do not wait for one another", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.knobs.set("decode", "prefetch", 9);
    expect(kernel.sent).toEqual([5, 9]);
  });

  test("that are refused leave the reason", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.answer(1, 4, "too many");
    expect(kernel.asked()).toEqual({ pending: undefined, error: "too many" });
  });

  test("are tried after an older one was refused", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.set(3);
    kernel.answer(1, 4, "too many");
    expect([kernel.sent, kernel.asked().error]).toEqual([[5, 3], ""]);
  });

  test("forget the reason when another is asked for", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.answer(1, 4, "too many");
    kernel.set(3);
    expect(kernel.asked().error).toBe("");
  });

  test("forget the reason after a while", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.answer(1, 4, "too many");
    kernel.now_ms = 13_000;
    expect([kernel.knobs.expire(), kernel.asked().error]).toEqual([true, ""]);
  });

  test("are believed a moment longer than an older snapshot", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.answer(1, 5);
    const soon = kernel.knobs.answered("decode", "concurrency");
    kernel.now_ms = 700;
    expect([soon, kernel.knobs.answered("decode", "concurrency")]).toEqual([5, undefined]);
  });

  test("ignore an answer to something else", () => {
    expect(new Kernel().answer(99, 1)).toBe(false);
  });

  test("say how long they have waited", () => {
    const kernel = new Kernel();
    kernel.set(5);
    kernel.now_ms = 1600;
    expect(kernel.knobs.waited_ms()).toBe(1600);
  });

  test("that cannot be sent say so", () => {
    const kernel = new Kernel();
    kernel.alive = false;
    kernel.set(5);
    expect(kernel.asked()).toEqual({ pending: undefined, error: "not sent: there is no kernel" });
  });
});
