import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { briefOf, isHung, nameOf, progressOf, stateOf, whyEmpty } from "../src/format";
import { KernelRuns } from "../src/kernel-runs";
import { MadeUpKernel, rowOf } from "./made-up";

let kernel: MadeUpKernel;
let runs: KernelRuns;

beforeEach(() => {
  vi.useFakeTimers();
  kernel = new MadeUpKernel();
});

afterEach(() => {
  runs.dispose();
  vi.useRealTimers();
});

/** Let what is waited for come about. */
async function settle(ms = 0): Promise<void> {
  await vi.advanceTimersByTimeAsync(ms);
}

/** A kernel that has imported nbpipe, and was found. */
async function meet(...rows: Record<string, unknown>[]): Promise<void> {
  kernel.comms = ["c1"];
  runs = new KernelRuns(kernel.connection, 0.5);
  await settle();
  kernel.hello(...rows);
}

function see(state: DocumentVisibilityState): void {
  vi.spyOn(document, "visibilityState", "get").mockReturnValue(state);
  document.dispatchEvent(new Event("visibilitychange"));
}

describe("a kernel", () => {
  test("without nbpipe is told nothing, and is asked again when a cell has ended", async () => {
    runs = new KernelRuns(kernel.connection, 0.5);
    await settle();
    expect([runs.phase, kernel.asked, kernel.comm]).toEqual(["absent", 1, null]);
    kernel.comms = ["c1"];
    kernel.endCell();
    await settle();
    expect([runs.phase, kernel.asked]).toEqual(["greeted", 2]);
    expect(kernel.sent).toMatchObject([{ op: "hello", protocol: 1 }]);
  });

  test("that says in mid-cell that it is there is asked; other comms are not its word", async () => {
    runs = new KernelRuns(kernel.connection, 0.5);
    await settle();
    kernel.comms = ["c1"];
    kernel.publish("comm_msg", { comm_id: "c0", data: { method: "update" } });
    await settle();
    expect([runs.phase, kernel.asked]).toEqual(["absent", 1]);
    kernel.publish("comm_msg", { comm_id: "c1", data: { type: "here" } });
    await settle();
    expect([runs.phase, kernel.asked]).toEqual(["greeted", 2]);
    kernel.receive({ type: "here" });
    expect(runs.phase).toBe("greeted");
  });

  test("that has one is not asked again", async () => {
    await meet(rowOf());
    kernel.endCell();
    await settle();
    expect([runs.phase, kernel.asked]).toEqual(["live", 1]);
  });

  test("is greeted until it answers, ever more rarely", async () => {
    kernel.comms = ["c1"];
    runs = new KernelRuns(kernel.connection, 0.5);
    await settle(2500);
    const views = new Set(kernel.sentOf("hello").map((hello) => hello.view));
    expect([kernel.sentOf("hello").length, views.size, runs.isSilent]).toEqual([2, 1, true]);
    await settle(1000);
    kernel.hello(rowOf());
    await settle(60_000);
    expect([kernel.sentOf("hello").length, runs.isSilent, runs.rows.length]).toEqual([3, false, 1]);
  });

  test("that is restarted is found anew, and its runs are forgotten", async () => {
    await meet(rowOf());
    const run = runs.run(1);
    const answer = runs.chain(1);
    kernel.restart();
    await settle();
    expect([runs.phase, runs.rows, run?.session.link]).toEqual(["absent", [], "kernelGone"]);
    expect(await answer).toMatchObject({ ok: false, error: "the kernel was restarted" });
    kernel.comms = ["c2"];
    kernel.endCell();
    await settle();
    kernel.hello(rowOf());
    expect([runs.phase, runs.run(1) === run]).toEqual(["live", false]);
  });

  test("whose connection was cut is greeted again", async () => {
    await meet(rowOf());
    kernel.connectionStatusChanged.emit("connected");
    expect(kernel.sentOf("hello").length).toBe(2);
  });

  test("that dies is said to be dead", async () => {
    await meet(rowOf());
    kernel.statusChanged.emit("dead");
    expect(whyEmpty(true, runs)).toMatch(/^The kernel is dead/);
  });

  test.each([
    [0, "Update nbpipe in the kernel: nbpipe 9.9 there speaks protocol 0"],
    [2, "Update jupyter-nbpipe where JupyterLab runs: nbpipe 9.9 there speaks protocol 2"],
  ])("of protocol %i is said to be of another version", async (protocol, said) => {
    kernel.comms = ["c1"];
    runs = new KernelRuns(kernel.connection, 0.5);
    await settle();
    kernel.receive({ type: "hello", protocol, version: "9.9", runs: "of no known form" });
    expect(whyEmpty(true, runs)).toContain(said);
  });

  test("that nobody looks at need send nothing", async () => {
    await meet(rowOf());
    see("hidden");
    expect(kernel.sentOf("view").at(-1)).toMatchObject({ open: false });
    see("visible");
    expect(kernel.sentOf("hello").length).toBe(2);
  });

  test("is told that its view is still there", async () => {
    await meet(rowOf());
    await settle(65_000);
    expect(kernel.sentOf("alive").length).toBe(2);
  });

  test("that says nonsense is not believed", async () => {
    const warn = vi.spyOn(console, "warn").mockReturnValue();
    await meet(rowOf());
    kernel.receive({ type: "runs", runs: [rowOf({ state: "odd" })] });
    expect([runs.rows[0]?.state, warn.mock.calls.length]).toEqual(["running", 1]);
  });

  test("is left without a trace", async () => {
    await meet(rowOf());
    runs.dispose();
    expect([kernel.listeners(), vi.getTimerCount()]).toEqual([0, 0]);
  });
});

test("without notebook or kernel it is said that there is none", async () => {
  await meet();
  expect([whyEmpty(false, null), whyEmpty(true, null)]).toEqual([
    "No notebook is open.",
    "This notebook has no kernel.",
  ]);
  expect(whyEmpty(true, runs)).toMatch(/^No run in this kernel yet: start one/);
});

describe("a run", () => {
  test("is spoken to as its panel speaks", async () => {
    await meet(rowOf({ run: 7 }));
    runs.run(7)?.session.set("decode", "concurrency", 8);
    expect(kernel.sentOf("run")).toMatchObject([
      { run: 7, message: { op: "set", stage: "decode", knob: "concurrency", value: 8 } },
    ]);
    const { id } = kernel.sentOf("run")[0]?.message ?? {};
    const message = { type: "ack", id, ok: false, value: 4, error: "too many" };
    kernel.receive({ type: "run", run: 7, message });
    expect(runs.run(7)?.session.knobs.asked("decode", "concurrency").error).toBe("too many");
  });

  test("that is open in the list stays so over a reload, and not over a restart", async () => {
    const isOpen = () => runs.run(1)?.isOpen;
    await meet(rowOf());
    const run = runs.run(1);
    expect(isOpen()).toBe(false);
    if (run !== undefined) {
      run.isOpen = true;
    }
    runs.dispose();
    await meet(rowOf());
    expect(isOpen()).toBe(true);
    kernel.restart();
    runs.dispose();
    await meet(rowOf());
    expect(isOpen()).toBe(false);
  });

  test("that is no longer listed is gone", async () => {
    await meet(rowOf(), rowOf({ run: 2 }));
    const run = runs.run(1);
    kernel.receive({ type: "runs", runs: [rowOf({ run: 2 })] });
    expect([runs.run(1), run?.session.link, runs.rows.length]).toEqual([
      undefined,
      "kernelGone",
      1,
    ]);
  });

  test("gives its chain, or says why not", async () => {
    await meet(rowOf());
    const answer = runs.chain(1);
    const { id } = kernel.sentOf("chain")[0] ?? {};
    kernel.receive({ type: "chain", id, ok: true, code: "pipe = 1", error: "" });
    expect(await answer).toMatchObject({ ok: true, code: "pipe = 1" });
    const silent = runs.all("pause_all");
    await settle(31_000);
    expect(await silent).toBe("the kernel did not answer");
  });

  test("is said in few words", async () => {
    await meet(rowOf({ variable: "" }), rowOf({ run: 2, total: null, limit: "" }));
    const [first, second] = runs.rows;
    expect(first && [nameOf(first), progressOf(first), briefOf(first, 1)]).toEqual([
      "files > decode",
      "12 of 40 batches",
      "3.50 batches/s · bottleneck: decode (+1)",
    ]);
    expect(second && [nameOf(second), progressOf(second), briefOf(second, 0)]).toEqual([
      "run",
      "12 batches",
      "3.50 batches/s",
    ]);
  });

  test("is hung where a call does not end, and amiss where it was empty", async () => {
    const empty = { run: 2, state: "finished", severity: "warning" };
    await meet(rowOf({ severity: "error", limit: "" }), rowOf(empty), rowOf({ run: 3 }));
    expect(runs.rows.map((row) => [isHung(row), ...stateOf(row)])).toEqual([
      [true, "failed", "hung"],
      [false, "failed", "finished"],
      [false, "running", "running"],
    ]);
    expect(runs.rows[0] && briefOf(runs.rows[0], 0)).toBe("3.50 batches/s · a call hangs");
  });
});
