/** OpButton: asks the kernel for one thing; it is there while that may be asked for. */

import type { Op, Snapshot } from "@nbpipe/protocol";
import { button, h, setDisabled, setHidden, setTitle } from "./dom";
import { icon } from "./icons";
import type { Session } from "./session";

const LABELS: Readonly<Record<Op, readonly [label: string, icon: string]>> = {
  pause: ["Pause", "paused"],
  resume: ["Resume", "running"],
  stop: ["Stop", "stopped"],
  undo: ["Undo", "undo"],
  autotune: ["Auto", "running"],
  autotune_stop: ["Stop tuning", "stopped"],
  autotune_undo: ["Undo all", "undo"],
};

export class OpButton {
  readonly el: HTMLButtonElement;

  constructor(
    private readonly session: Session,
    private readonly op: Op,
  ) {
    const [label, shape] = LABELS[op];
    this.el = button(
      { class: `op ${op}`, "data-op": op, "aria-label": label, title: label },
      icon(shape).el,
      h("span", { class: "label" }, label),
    );
    this.el.hidden = true;
    this.el.addEventListener("click", () => session.ask(op));
  }

  update(snapshot: Snapshot, enabled: boolean, title = ""): void {
    const { session, op } = this;
    setHidden(this.el, session.link === "kernelGone" || !snapshot.actions.includes(op));
    setDisabled(this.el, !enabled || session.isAsked(op));
    setTitle(this.el, title || LABELS[op][0]);
  }
}
