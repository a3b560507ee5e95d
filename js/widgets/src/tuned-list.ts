/** TunedList: what the tuner did, with the rates before and after; the newest on top. */

import type { Tuned } from "@nbpipe/protocol";
import { h, setHidden, setText } from "./dom";
import { formatAmount, formatMoment } from "./format";
import { keep, type Sections } from "./sections";
import type { Session } from "./session";

export class TunedList {
  readonly el = h("details", { class: "tuned" });
  private readonly count = h("span", { class: "sub" });
  private readonly body = h("div", { class: "deeds", tabindex: "0" });
  private shown: readonly Tuned[] | undefined;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.el.append(h("summary", {}, "What Auto did ", this.count), this.body);
    keep(this.el, sections, "tuned", false);
    this.el.addEventListener("toggle", () => this.update());
  }

  update(): void {
    const { tuned, snapshot } = this.session;
    setHidden(this.el, tuned.length === 0);
    setText(this.count, String(tuned.length));
    if (this.el.open && tuned !== this.shown) {
      this.shown = tuned;
      const unit = snapshot?.unit ?? "batches";
      this.body.replaceChildren(...[...tuned].reverse().map((one) => deed(one, unit)));
    }
  }
}

function deed(
  { when_s, knob, old, new: now, why, before, after, taken_back }: Tuned,
  unit: string,
) {
  const el = h("div", { class: "deed" }, h("time", {}, formatMoment(when_s)));
  if (knob === "") {
    el.append(h("span", { class: "note" }, why));
    return el;
  }
  const said = taken_back ? `taken back: ${why}` : why;
  el.classList.toggle("nbp-taken-back", taken_back);
  el.append(
    h("b", {}, h("bdi", {}, knob)),
    h("span", {}, `${old} → ${now}`),
    h("span", {}, ratesOf(before, after, unit)),
    h("span", { class: "because" }, said),
  );
  return el;
}

/** The rates before and after; where neither was measured, nothing. */
function ratesOf(before: number | null, after: number | null, unit: string): string {
  const amount = (rate: number | null) => (rate === null ? "–" : formatAmount(rate));
  const none = before === null && after === null;
  return none ? "" : `${amount(before)} → ${amount(after)} ${unit}/s`;
}
