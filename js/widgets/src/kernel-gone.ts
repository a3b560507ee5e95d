/** KernelGone: replaces the diagnosis after the kernel was restarted. */

import { button, h, setHidden } from "./dom";
import { icon } from "./icons";
import { rerunCell } from "./rerun-cell";

export class KernelGone {
  readonly el = h("section", { class: "kernel-gone", role: "alert" });
  private readonly again = button({ class: "again", "data-op": "again" }, "Run the cell again");

  constructor() {
    const said = h("strong", {}, "The kernel was restarted; this run is gone.");
    const rest = "The numbers below are its last.";
    const text = h("p", { "data-field": "gone" }, said, " ", rest);
    this.again.addEventListener("click", () => rerunCell(this.el)?.());
    this.el.append(icon("cancelled").el, text, this.again);
    this.el.hidden = true;
  }

  update(kernelGone: boolean): void {
    if (this.el.hidden === kernelGone) {
      setHidden(this.again, rerunCell(this.el) === null);
      setHidden(this.el, !kernelGone);
    }
  }
}
