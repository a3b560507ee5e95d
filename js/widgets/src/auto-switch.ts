/** AutoSwitch: whether the knobs are turned by measured gain. */

import type { Snapshot } from "@nbpipe/protocol";
import { button, h, setAttribute, setDisabled, setHidden, setTitle } from "./dom";
import type { Session } from "./session";

const OFF = "let nbpipe turn the knobs by measured gain, while your loop trains";

export class AutoSwitch {
  readonly el: HTMLButtonElement;
  private isOn = false;

  constructor(private readonly session: Session) {
    const track = h("span", { class: "track" }, h("i", {}));
    this.el = button({ class: "switch", role: "switch", "data-op": "auto" }, "Auto", track);
    this.el.hidden = true;
    this.el.addEventListener("click", () => session.ask(this.isOn ? "autotune_stop" : "autotune"));
  }

  update({ actions, tuner }: Snapshot, enabled: boolean): void {
    const { session } = this;
    this.isOn = actions.includes("autotune_stop");
    setHidden(
      this.el,
      session.link === "kernelGone" || !(this.isOn || actions.includes("autotune")),
    );
    setDisabled(
      this.el,
      !enabled || session.isAsked("autotune") || session.isAsked("autotune_stop"),
    );
    setAttribute(this.el, "aria-checked", String(this.isOn));
    setTitle(this.el, this.isOn && tuner !== null ? tuner.state : OFF);
  }
}
