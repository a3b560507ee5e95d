/** What became of an export: the file and notes, or the refusal in full. */

import { CopyButton } from "./copy";
import { button, h, setHidden, setText, unshortened } from "./dom";
import type { Progress } from "./exports";

export class Outcome {
  readonly el = h("div", { class: "outcome" });
  private readonly done: HTMLElement;
  private readonly path = h("code", { "data-field": "exported" });
  private readonly copy = new CopyButton("copy", this.path);
  private readonly notes = h("ul", {});
  private readonly refused: HTMLElement;
  private readonly reason = h("strong", { role: "alert" });
  private readonly rest = h("span", {});
  private readonly overwrite = button({ "data-op": "overwrite" }, "Overwrite");
  private asked = "";

  /** `overwrite` asks for the path again, `dismiss` forgets the refusal. */
  constructor(overwrite: (path: string) => void, dismiss: () => void) {
    const said = h("p", { role: "status" }, "exported to ", this.path, this.copy.el);
    this.done = h("div", { class: "done" }, said, this.notes);
    const text = h("pre", { tabindex: "0", "data-field": "refusal" }, this.reason, this.rest);
    const away = button({ "data-op": "dismiss" }, "Dismiss");
    const buttons = h("div", { class: "ask" }, this.overwrite, away);
    this.refused = h("div", { class: "refusal" }, unshortened(text), buttons);
    this.el.append(this.done, this.refused);
    this.overwrite.addEventListener("click", () => overwrite(this.asked));
    away.addEventListener("click", dismiss);
    this.show({ phase: "none" });
  }

  show(progress: Progress): void {
    setHidden(this.done, progress.phase !== "done");
    setHidden(this.refused, progress.phase !== "refused");
    setText(this.path, progress.phase === "done" ? progress.written : "");
    if (progress.phase === "done") {
      this.copy.offer(progress.written, "Copy path");
      this.notes.replaceChildren(...progress.notes.map((note) => h("li", {}, note)));
    }
    const error = progress.phase === "refused" ? progress.error : "";
    const [reason = "", ...rest] = error.split("\n");
    setText(this.reason, reason);
    setText(this.rest, rest.map((line) => `\n${line}`).join(""));
    setHidden(this.overwrite, progress.phase !== "refused" || !progress.edited);
    this.asked = progress.phase === "refused" ? progress.path : "";
  }
}
