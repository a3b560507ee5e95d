/** Log of knob changes: when, what, from, to, by, why; the newest on top. */

import type { Change } from "@nbpipe/protocol";
import { h, setText } from "./dom";
import { formatMoment } from "./format";
import { keep, type Sections } from "./sections";
import type { Session } from "./session";

const SHOWN = 50;

export class Log {
  readonly el = h("details", { class: "log" });
  private readonly count = h("span", { class: "sub" });
  private readonly body = h("div", { class: "entries", tabindex: "0" });
  private shown: readonly Change[] | undefined;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.el.append(h("summary", {}, "Changes ", this.count), this.body);
    keep(this.el, sections, "log", false);
    this.el.addEventListener("toggle", () => this.update());
  }

  update(): void {
    const { changes } = this.session.history;
    setText(this.count, changes.length > 0 ? String(changes.length) : "none");
    if (this.el.open && changes !== this.shown) {
      this.shown = changes;
      this.body.replaceChildren(...changes.slice(-SHOWN).reverse().map(entry));
    }
  }
}

function entry(change: Change): HTMLElement {
  return h(
    "div",
    { class: "entry" },
    h("time", {}, formatMoment(change.when_s)),
    h("b", {}, h("bdi", {}, change.knob)),
    h("span", { class: "step" }, `${change.old} → ${change.new}`),
    h("span", { class: "by" }, `by ${change.by}`),
    h("span", { class: "why" }, change.why),
  );
}
