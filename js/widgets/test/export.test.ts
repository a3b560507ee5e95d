import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { sample } from "../../protocol/test/sample";
import { MockModel } from "./mock-model";
import { frame, press, Shown, show, type } from "./page";

const ACTIONS = { actions: ["pause", "stop", "export"] };
const TOLD = { type: "exported", ok: true, path: "", notes: [], error: "", edited: false };
const REFUSED = `variable 'fh' is a live <b>TextIOWrapper</b>; open it inside the stage instead
  used by: helper() [In[4]] <- decode() [In[4]]`;

let model: MockModel;
let shown: Shown;
let open: Shown[];

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(console, "warn").mockReturnValue(undefined);
  model = new MockModel(sample(ACTIONS));
  shown = show(model);
  open = [shown];
  model.hello(ACTIONS);
  frame();
});

afterEach(() => {
  for (const each of open) {
    each.close();
  }
  document.body.replaceChildren();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const form = (): HTMLElement => shown.one(".nbp-export");
const path = (): HTMLInputElement => shown.one<HTMLInputElement>(".nbp-export input");
const opener = (): HTMLButtonElement => shown.one<HTMLButtonElement>("button[data-op=export]");
const go = (): HTMLButtonElement => shown.one<HTMLButtonElement>("button[data-op=export-go]");
const asked = () => model.sentOf("export");
const isSeen = (selector: string): boolean => shown.one(selector).closest("[hidden]") === null;

/** Ask for an export, which the kernel begins. */
function begin(): number {
  opener().click();
  press(path(), "Enter");
  model.ack(null);
  frame();
  return asked().at(-1)?.id ?? 0;
}

function end(changes: Record<string, unknown>, id = begin()): void {
  model.receive({ ...TOLD, id, ...changes });
  frame();
}

describe("the button", () => {
  test("opens the form, its path ready to be typed over", () => {
    const before = form().hidden;
    opener().click();
    expect([before, form().hidden, document.activeElement, path().value]).toEqual([
      true,
      false,
      path(),
      "loader.py",
    ]);
  });

  test("says whether the form is open, and closes it", () => {
    const found = [opener().getAttribute("aria-expanded")];
    for (let press = 0; press < 2; press += 1) {
      opener().click();
      found.push(opener().getAttribute("aria-expanded"));
    }
    expect(found).toEqual(["false", "true", "false"]);
  });

  test("is there for a run that is closed, not for one that is gone", () => {
    const found = [["export"], []].map((actions) => {
      model.tick({ actions, state: "closed" });
      frame();
      return [opener().hidden, opener().disabled];
    });
    expect(found).toEqual([
      [false, false],
      [true, false],
    ]);
  });

  test("without a kernel is disabled", () => {
    model.dead = true;
    shown.one("button[data-op=stop]").click();
    frame();
    expect(opener().disabled).toBe(true);
  });
});

describe("the form", () => {
  test("asks with Enter for what was typed", () => {
    opener().click();
    type(path(), "  src/train.py ");
    press(path(), "Enter");
    expect(asked()).toMatchObject([{ path: "src/train.py", overwrite: false }]);
  });

  test("asks with its button", () => {
    opener().click();
    go().click();
    expect(asked()).toMatchObject([{ path: "loader.py", overwrite: false }]);
  });

  test("asks once until it is answered, and says that it writes", () => {
    begin();
    press(path(), "Enter");
    go().click();
    expect([
      asked().length,
      shown.text(".nbp-writing"),
      go().getAttribute("aria-disabled"),
    ]).toEqual([1, "writing…", "true"]);
  });

  test("closes with Escape, and gives the focus back", () => {
    opener().click();
    press(path(), "Escape");
    expect([form().hidden, document.activeElement]).toEqual([true, opener()]);
  });

  test("closes with its button", () => {
    opener().click();
    shown.one("button[data-op=export-close]").click();
    expect([form().hidden, asked()]).toEqual([true, []]);
  });

  test("keeps its keys from the notebook", () => {
    opener().click();
    const heard: string[] = [];
    document.body.addEventListener("keydown", (event) => heard.push(event.key), { once: true });
    press(path(), "Enter");
    press(path(), "Escape");
    expect([heard, path().dataset.lmSuppressShortcuts]).toEqual([[], "true"]);
  });

  test("comes back with the end of an export, once it was closed", () => {
    const id = begin();
    press(path(), "Escape");
    const before = form().hidden;
    end({ path: "/home/ada/loader.py" }, id);
    expect([before, form().hidden]).toEqual([true, false]);
  });

  test("stays open where the panel is shown anew, with what became of the export", () => {
    const id = begin();
    shown.close();
    shown = new Shown(model);
    open.push(shown);
    frame();
    const busy = shown.text(".nbp-writing");
    end({ path: "/loader.py" }, id);
    expect([busy, form().hidden, shown.text("[data-field=exported]")]).toEqual([
      "writing…",
      false,
      "/loader.py",
    ]);
  });

  test("of another view stays closed", () => {
    const other = new Shown(model);
    open.push(other);
    end({ path: "/home/ada/loader.py" });
    expect(other.one(".nbp-export").hidden).toBe(true);
  });
});

describe("an export that is done", () => {
  test("shows the whole path and the notes, as text", () => {
    end({ path: "/home/ada/<img src=x>/loader.py", notes: ["<b>CACHE</b> begins empty"] });
    expect([
      shown.text("[data-field=exported]"),
      [...shown.el.querySelectorAll(".nbp-done li")].map((note) => note.textContent),
      shown.el.querySelector("img, .nbp-done b"),
      shown.text(".nbp-writing"),
    ]).toEqual(["/home/ada/<img src=x>/loader.py", ["<b>CACHE</b> begins empty"], null, ""]);
  });

  test("is told though its answer comes late", () => {
    opener().click();
    press(path(), "Enter");
    const id = asked().at(-1)?.id ?? 0;
    end({ path: "/loader.py" }, id);
    model.receive({ type: "ack", id, ok: true, value: null });
    frame();
    expect([shown.text("[data-field=exported]"), shown.text(".nbp-writing")]).toEqual([
      "/loader.py",
      "",
    ]);
  });

  test("has its path copied", async () => {
    const writeText = vi.fn().mockResolvedValue(undefined);
    vi.stubGlobal("navigator", { clipboard: { writeText } });
    end({ path: "/loader.py" });
    shown.one("button[data-op=copy]").click();
    await vi.advanceTimersByTimeAsync(0);
    vi.unstubAllGlobals();
    expect([writeText.mock.calls, shown.text("button[data-op=copy]")]).toEqual([
      [["/loader.py"]],
      "Copied",
    ]);
  });

  test("has its path selected where the clipboard is closed", async () => {
    vi.stubGlobal("navigator", {});
    end({ path: "/loader.py" });
    shown.one("button[data-op=copy]").click();
    await vi.advanceTimersByTimeAsync(0);
    vi.unstubAllGlobals();
    expect(shown.text("button[data-op=copy]")).toBe("Selected");
  });

  test("of another page is not shown", () => {
    opener().click();
    end({ path: "/other.py" }, 123);
    expect(isSeen("[data-field=exported]")).toBe(false);
  });

  test("is forgotten when the form is closed", () => {
    end({ path: "/loader.py" });
    press(path(), "Escape");
    opener().click();
    frame();
    expect(isSeen("[data-field=exported]")).toBe(false);
  });
});

describe("a refusal", () => {
  test("is shown in full, its lines kept, as text", () => {
    end({ ok: false, error: REFUSED });
    const text = shown.one("[data-field=refusal]").textContent;
    expect([text, shown.el.querySelector(".nbp-refusal b"), isSeen(".nbp-refusal")]).toEqual([
      REFUSED,
      null,
      true,
    ]);
  });

  test("is said aloud by its first line", () => {
    end({ ok: false, error: REFUSED });
    expect(shown.one(".nbp-refusal [role=alert]").textContent).toBe(REFUSED.split("\n")[0]);
  });

  test("at once is shown as well", () => {
    opener().click();
    press(path(), "Enter");
    model.ack(null, "path must be that of a module");
    frame();
    expect([shown.text("[data-field=refusal]"), shown.text(".nbp-writing")]).toEqual([
      "path must be that of a module",
      "",
    ]);
  });

  test("is dismissed, the focus in the form", () => {
    end({ ok: false, error: REFUSED });
    shown.one("button[data-op=dismiss]").click();
    frame();
    expect([isSeen(".nbp-refusal"), document.activeElement]).toEqual([false, path()]);
  });

  test("offers to overwrite only a file that was edited", () => {
    end({ ok: false, error: REFUSED });
    const before = isSeen("button[data-op=overwrite]");
    press(path(), "Enter");
    end({ ok: false, error: REFUSED, edited: true }, asked().at(-1)?.id);
    expect([before, isSeen("button[data-op=overwrite]")]).toEqual([false, true]);
  });

  test("overwrites the file that it was about, whatever was typed since", () => {
    end({ ok: false, error: REFUSED, edited: true });
    type(path(), "other.py");
    shown.one("button[data-op=overwrite]").click();
    expect(asked().at(-1)).toMatchObject({ path: "loader.py", overwrite: true });
  });

  test("says when there is no kernel", () => {
    opener().click();
    model.dead = true;
    press(path(), "Enter");
    frame();
    expect(shown.text("[data-field=refusal]")).toBe("not sent: there is no kernel");
  });

  test("says when the kernel is gone meanwhile", () => {
    begin();
    model.dead = true;
    vi.advanceTimersByTime(31_000);
    expect(shown.text("[data-field=refusal]")).toContain("the kernel is gone");
  });
});

describe("the line about the last export", () => {
  test("names what was turned since", () => {
    expect(shown.text("[data-field=export]")).toBe(
      "changed since export to loader <b>.py: decode.concurrency 4 → 5, batch.concurrency 1 → 2",
    );
  });

  test("says so where nothing was", () => {
    model.tick({ export: { file: "loader.py", turned: [] } });
    frame();
    expect(shown.text("[data-field=export]")).toBe(
      "exported to loader.py; no knob was turned since",
    );
  });

  test("is not there before an export", () => {
    model.tick({ export: null });
    frame();
    expect(shown.one("[data-field=export]").hidden).toBe(true);
  });
});
