/** Kernels: those of the open notebooks, each with its runs; the current notebook's is in front. */

import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { Kernel } from "@jupyterlab/services";
import { Signal } from "@lumino/signaling";
import { KernelRuns } from "./kernel-runs";

/** A kernel's runs, and the notebook that has it. */
export interface Place {
  readonly panel: NotebookPanel;
  readonly runs: KernelRuns;
}

export class Kernels {
  /** Something of any kernel changed, or another notebook is in front. */
  readonly changed = new Signal<this, void>(this);
  private readonly known = new Map<Kernel.IKernelConnection, KernelRuns>();
  private refresh_s = 0.5;

  constructor(private readonly tracker: INotebookTracker) {
    tracker.widgetAdded.connect((_, panel) => this.add(panel));
    tracker.currentChanged.connect(() => this.notify());
    tracker.forEach((panel) => {
      this.add(panel);
    });
  }

  /** The notebook in front, or that was in front before what is no notebook. */
  get panel(): NotebookPanel | null {
    return this.tracker.currentWidget;
  }

  /** The runs of its kernel; null where it has none. */
  get current(): KernelRuns | null {
    return this.panel && this.runsOf(this.panel);
  }

  /** Every kernel once. */
  get places(): readonly Place[] {
    const found = new Map<KernelRuns, Place>();
    this.tracker.forEach((panel) => {
      const runs = this.runsOf(panel);
      if (runs !== null && !found.has(runs)) {
        found.set(runs, { panel, runs });
      }
    });
    return [...found.values()];
  }

  /** Seconds between two looks at the runs. */
  set refresh(refresh_s: number) {
    this.refresh_s = refresh_s;
    for (const runs of this.known.values()) {
      runs.refresh = refresh_s;
    }
  }

  private runsOf(panel: NotebookPanel): KernelRuns | null {
    const kernel = panel.sessionContext.session?.kernel;
    return (kernel && this.known.get(kernel)) ?? null;
  }

  private add(panel: NotebookPanel): void {
    const { sessionContext } = panel;
    const take = () => this.take(sessionContext.session?.kernel ?? null);
    sessionContext.kernelChanged.connect(take);
    panel.disposed.connect(() => {
      sessionContext.kernelChanged.disconnect(take);
      this.notify();
    });
    take();
  }

  private take(kernel: Kernel.IKernelConnection | null): void {
    if (kernel !== null && !this.known.has(kernel)) {
      const runs = new KernelRuns(kernel, this.refresh_s);
      this.known.set(kernel, runs);
      runs.listen(() => this.notify());
      kernel.disposed.connect(() => {
        this.known.delete(kernel);
        runs.dispose();
        this.notify();
      });
    }
    this.notify();
  }

  private notify(): void {
    this.changed.emit();
  }
}
