/** Sidebar: the runs of the current notebook's kernel, live; each opens to its panel. */

import { Widget } from "@lumino/widgets";
import { h, setHidden, setText } from "@nbpipe/widgets/src/dom";
import { Entry } from "./entry";
import { whyEmpty } from "./format";
import { pipelineIcon } from "./icon";
import type { KernelRuns } from "./kernel-runs";
import type { Kernels } from "./kernels";

export const SIDEBAR = "nbpipe-runs";

export class Sidebar extends Widget {
  private readonly notebook = h("span", { class: "notebook" });
  private readonly empty = h("p", { class: "empty", role: "status" });
  private readonly list = h("ul", { class: "runs", "aria-label": "runs" });
  private readonly entries = new Map<number, Entry>();
  private shown: KernelRuns | null = null;
  private frame = 0;

  constructor(private readonly kernels: Kernels) {
    super();
    this.id = SIDEBAR;
    this.title.icon = pipelineIcon;
    this.title.caption = "nbpipe";
    this.addClass("nbpipe-sidebar");
    this.node.tabIndex = -1;
    this.node.setAttribute("role", "region");
    this.node.setAttribute("aria-label", "nbpipe runs");
    const title = h("header", { class: "top" }, h("h2", {}, "nbpipe"), this.notebook);
    this.node.append(title, this.empty, this.list);
    kernels.changed.connect(this.schedule, this);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      cancelAnimationFrame(this.frame);
      this.kernels.changed.disconnect(this.schedule, this);
      this.clear();
      super.dispose();
    }
  }

  /** Open a run's panel, and go there. */
  reveal(run: number): void {
    this.paint();
    this.entries.get(run)?.reveal();
  }

  /** Who opens it can go on with the keyboard. */
  protected override onActivateRequest(): void {
    this.paint();
    const first = this.list.querySelector("button") ?? this.node;
    first.focus();
  }

  protected override onAfterShow(): void {
    this.paint();
  }

  protected override onAfterAttach(): void {
    this.paint();
  }

  private schedule(): void {
    if (this.frame === 0 && this.isVisible) {
      this.frame = requestAnimationFrame(() => this.paint());
    }
  }

  private paint(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { panel, current } = this.kernels;
    if (current !== this.shown) {
      this.clear();
      this.shown = current;
    }
    setText(this.notebook, panel?.title.label ?? "");
    const why = whyEmpty(panel !== null, current);
    setText(this.empty, why);
    setHidden(this.empty, why === "");
    this.paintRuns(current);
  }

  private paintRuns(runs: KernelRuns | null): void {
    const rows = runs?.rows ?? [];
    const here = new Set(rows.map((row) => row.run));
    for (const [number, entry] of this.entries) {
      if (!here.has(number) || entry.run !== runs?.run(number)) {
        entry.dispose();
        this.entries.delete(number);
      }
    }
    for (const row of rows) {
      const run = runs?.run(row.run);
      let entry = this.entries.get(row.run);
      if (entry === undefined && run !== undefined) {
        entry = new Entry(run);
        this.entries.set(row.run, entry);
        this.list.append(entry.el);
      }
      entry?.update(row);
    }
  }

  private clear(): void {
    for (const entry of this.entries.values()) {
      entry.dispose();
    }
    this.entries.clear();
  }
}
