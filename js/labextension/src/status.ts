/** Status: rate and bottleneck of what runs in the notebook in front, in the status bar. */

import type { IStatusBar } from "@jupyterlab/statusbar";
import { Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";
import { button, h, setClass, setText, setTitle } from "@nbpipe/widgets/src/dom";
import { briefOf, isHung } from "./format";
import type { Kernels } from "./kernels";

export class Status extends Widget {
  private readonly text = h("span", {});
  private readonly changed = new Signal<this, void>(this);
  private isActive = false;

  constructor(
    private readonly kernels: Kernels,
    show: () => void,
  ) {
    super();
    this.addClass("nbpipe-status");
    const opener = button({ class: "brief" }, this.text);
    opener.addEventListener("click", show);
    this.node.append(opener);
    kernels.changed.connect(this.update, this);
  }

  /** Put it into the status bar, where it is seen while a run is under way. */
  register(bar: IStatusBar): void {
    bar.registerStatusItem("nbpipe:status", {
      item: this,
      align: "left",
      rank: 40,
      isActive: () => this.isActive,
      activeStateChanged: this.changed,
    });
  }

  override dispose(): void {
    this.kernels.changed.disconnect(this.update, this);
    super.dispose();
  }

  protected override onUpdateRequest(): void {
    const running = (this.kernels.current?.rows ?? []).filter((row) => row.state === "running");
    const row = running.find(isHung) ?? running[0];
    if (row !== undefined) {
      setText(this.text, briefOf(row, running.length - 1));
      setClass(this.text, "alarm", isHung(row));
      setTitle(this.text, `${row.title}\n${row.sentence}`);
    }
    if (this.isActive !== (row !== undefined)) {
      this.isActive = row !== undefined;
      this.changed.emit();
    }
  }
}
