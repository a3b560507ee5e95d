/** Gone: what is said in the place of a verdict when the kernel was restarted. */

import { button, h, setHidden } from "./dom";
import { icon } from "./icons";
import { cellRunner } from "./rerun";

export class Gone {
  readonly el = h("section", { class: "gone", role: "alert" });
  private readonly again = button({ class: "again", "data-op": "again" }, "Run the cell again");

  constructor() {
    const said = h("strong", {}, "The kernel was restarted; this run is gone.");
    const rest = "The numbers below are its last.";
    const text = h("p", { "data-field": "gone" }, said, " ", rest);
    this.again.addEventListener("click", () => cellRunner(this.el)?.());
    this.el.append(icon("cancelled").el, text, this.again);
    this.el.hidden = true;
  }

  update(isGone: boolean): void {
    if (this.el.hidden === isGone) {
      setHidden(this.again, cellRunner(this.el) === null);
      setHidden(this.el, !isGone);
    }
  }
}
