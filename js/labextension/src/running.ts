/** The runs in JupyterLab's own list of what runs, beside kernels and terminals. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { IRunningSessionManagers, IRunningSessions } from "@jupyterlab/running";
import { Signal } from "@lumino/signaling";
import type { Row } from "@nbpipe/protocol";
import { SHOW } from "./commands";
import { nameOf } from "./format";
import { pipelineIcon } from "./icon";
import type { Kernels, Place } from "./kernels";

interface Going extends Place {
  readonly row: Row;
}

export class RunningRuns implements IRunningSessions.IManager {
  readonly name = "nbpipe runs";
  readonly shutdownLabel = "Stop";
  readonly shutdownAllLabel = "Stop All";
  readonly shutdownAllConfirmationText = "Stop every pipeline that runs?";
  readonly runningChanged = new Signal<this, void>(this);
  private shown = "";

  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly kernels: Kernels,
    managers: IRunningSessionManagers,
  ) {
    managers.add(this);
    kernels.changed.connect(() => this.onChange());
  }

  running(): IRunningSessions.IRunningItem[] {
    return this.going().map(({ panel, runs, row }) => ({
      icon: () => pipelineIcon,
      label: () => `${nameOf(row)} · ${panel.title.label}`,
      labelTitle: () => row.title,
      detail: () => row.state,
      open: () => {
        this.app.shell.activateById(panel.id);
        void this.app.commands.execute(SHOW, { run: row.run });
      },
      shutdown: () => runs.stop(row.run),
    }));
  }

  shutdownAll(): void {
    for (const { runs, row } of this.going()) {
      runs.stop(row.run);
    }
  }

  /** The kernels tell by themselves. */
  refreshRunning(): void {}

  private going(): Going[] {
    return this.kernels.places.flatMap(({ panel, runs }) =>
      runs.rows
        .filter((row) => row.state === "running" || row.state === "paused")
        .map((row) => ({ panel, runs, row })),
    );
  }

  /** The list is made again only where it has changed. */
  private onChange(): void {
    const shown = JSON.stringify(
      this.going().map(({ panel, row }) => [panel.id, row.run, row.state, nameOf(row)]),
    );
    if (shown !== this.shown) {
      this.shown = shown;
      this.runningChanged.emit();
    }
  }
}
