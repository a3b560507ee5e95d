/** What one may do with the runs of the notebook in front: in palette, menus and the cell's toolbar. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import {
  Dialog,
  type ICommandPalette,
  InputDialog,
  Notification,
  showDialog,
} from "@jupyterlab/apputils";
import { type INotebookTracker, NotebookActions } from "@jupyterlab/notebook";
import { Widget } from "@lumino/widgets";
import type { Row, RunsOp } from "@nbpipe/protocol";
import { h } from "@nbpipe/widgets/src/dom";
import type { Progress } from "@nbpipe/widgets/src/exports";
import { nameOf } from "./format";
import { pipelineIcon } from "./icon";
import type { Kernels } from "./kernels";
import type { RunInKernel } from "./run";
import { SIDEBAR, type Sidebar } from "./sidebar";

export const SHOW = "nbpipe:show";
const SHOW_CELL = "nbpipe:show-cell";
const EXPORT = "nbpipe:export";
const INSERT = "nbpipe:insert-chain";
const CATEGORY = "nbpipe";
const DEFAULT_PATH = "loader.py";
const SHOWN_MS = 8000;
/** JupyterLab cuts what is longer in a notification. */
const LONGEST = 140;

/** For each thing to ask of all runs: the command, its name, and what a run that can do it offers. */
const TO_ALL: readonly [string, string, RunsOp, string][] = [
  ["nbpipe:pause-all", "nbpipe: Pause All Runs", "pause_all", "pause"],
  ["nbpipe:resume-all", "nbpipe: Resume All Runs", "resume_all", "resume"],
  ["nbpipe:stop-all", "nbpipe: Stop All Runs", "stop_all", "stop"],
];

export class Commands {
  private shown = "";

  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly tracker: INotebookTracker,
    private readonly kernels: Kernels,
    private readonly sidebar: Sidebar,
  ) {
    this.addShow();
    this.addToAll();
    this.addToOne();
    kernels.changed.connect(() => this.renew());
    tracker.activeCellChanged.connect(() => this.renew());
  }

  /** Offer them in the palette. */
  list(palette: ICommandPalette): void {
    for (const command of [SHOW, ...TO_ALL.map(([name]) => name), EXPORT, INSERT]) {
      palette.addItem({ command, category: CATEGORY });
    }
  }

  private addShow(): void {
    const { commands, shell } = this.app;
    commands.addCommand(SHOW, {
      label: "nbpipe: Show Runs",
      caption: "Show the runs of the notebook in front, and what limits them",
      icon: pipelineIcon,
      execute: ({ run }) => {
        shell.activateById(SIDEBAR);
        if (typeof run === "number") {
          this.sidebar.reveal(run);
        }
      },
    });
    commands.addCommand(SHOW_CELL, {
      label: "nbpipe: Show the Run of This Cell",
      caption: "Show the run that this cell has started",
      icon: pipelineIcon,
      isVisible: () => this.ofCell() !== undefined,
      execute: () => commands.execute(SHOW, { run: this.ofCell()?.run ?? null }),
    });
  }

  private addToAll(): void {
    for (const [command, label, op, action] of TO_ALL) {
      this.app.commands.addCommand(command, {
        label,
        isVisible: () => this.rows.length > 0,
        isEnabled: () => this.offer(action).length > 0,
        execute: async () => {
          const error = await this.kernels.current?.all(op);
          if (error) {
            await tell(label, error);
          }
        },
      });
    }
  }

  private addToOne(): void {
    this.app.commands.addCommand(EXPORT, {
      label: "nbpipe: Export Pipeline as Module…",
      caption: "Write a pipeline, as it is tuned now, to a Python module",
      isVisible: () => this.rows.length > 0,
      isEnabled: () => this.offer("export").length > 0,
      execute: () => this.exportOne(),
    });
    this.app.commands.addCommand(INSERT, {
      label: "nbpipe: Insert Tuned Pipeline Below",
      caption: "Write a pipeline, as it is tuned now, into a new cell",
      isVisible: () => this.rows.length > 0,
      execute: () => this.insertOne(),
    });
  }

  private get rows(): readonly Row[] {
    return this.kernels.current?.rows ?? [];
  }

  private offer(action: string): readonly Row[] {
    return this.rows.filter((row) => row.actions.includes(action));
  }

  /** The last run that the active cell has started. */
  private ofCell(): Row | undefined {
    const id = this.tracker.activeCell?.model.id;
    return this.rows.filter((row) => row.cell !== "" && row.cell === id).at(-1);
  }

  /** Buttons and menus ask again what is offered, where that may have changed. */
  private renew(): void {
    const offered = this.rows.map((row) => [row.run, row.cell, row.actions]);
    const shown = JSON.stringify([offered, this.tracker.activeCell?.model.id]);
    if (shown !== this.shown) {
      this.shown = shown;
      for (const command of [SHOW_CELL, EXPORT, INSERT, ...TO_ALL.map(([name]) => name)]) {
        this.app.commands.notifyCommandChanged(command);
      }
    }
  }

  /** The run that is meant: that of the cell, or the only one; else ask. */
  private async choose(title: string, rows: readonly Row[]): Promise<Row | undefined> {
    const own = this.ofCell();
    if (own !== undefined && rows.includes(own)) {
      return own;
    }
    if (rows.length < 2) {
      return rows[0];
    }
    const items = rows.map((row, place) => `${place + 1}: ${nameOf(row)}`);
    const { value } = await InputDialog.getItem({ title, label: "Which pipeline?", items });
    return value === null ? undefined : rows[items.indexOf(value)];
  }

  private async exportOne(): Promise<void> {
    const title = "Export Pipeline as Module";
    const row = await this.choose(title, this.offer("export"));
    const run = row && this.kernels.current?.run(row.run);
    if (run === undefined) {
      return;
    }
    const { value } = await InputDialog.getText({
      title,
      label: "File to write, beside the notebook:",
      text: DEFAULT_PATH,
      okLabel: "Export",
    });
    const path = value?.trim();
    if (path) {
      await this.write(title, run, path, false);
    }
  }

  private async write(
    title: string,
    run: RunInKernel,
    path: string,
    overwrite: boolean,
  ): Promise<void> {
    const done = await exported(run, path, overwrite);
    if (done.phase === "done") {
      const text = [`Wrote ${done.written}`, ...done.notes].join("\n");
      if (text.length > LONGEST) {
        await tell(title, text);
      } else {
        Notification.success(text, { autoClose: SHOWN_MS });
      }
    } else if (done.phase === "refused" && done.edited && !overwrite) {
      const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: "Overwrite" })];
      const { button } = await showDialog({ title, body: inFull(done.error), buttons });
      if (button.accept) {
        await this.write(title, run, path, true);
      }
    } else if (done.phase === "refused") {
      await tell(title, done.error);
    }
  }

  private async insertOne(): Promise<void> {
    const title = "Insert Tuned Pipeline";
    const { current, panel } = this.kernels;
    const row = await this.choose(title, this.rows);
    const answer = row && (await current?.chain(row.run));
    if (answer?.ok && panel !== null && !panel.isDisposed) {
      NotebookActions.insertBelow(panel.content);
      panel.content.activeCell?.model.sharedModel.setSource(answer.code);
    } else if (answer !== undefined) {
      await tell(title, answer.error);
    }
  }
}

/** Tell something that may be long. */
async function tell(title: string, text: string): Promise<void> {
  await showDialog({ title, body: inFull(text), buttons: [Dialog.okButton({ label: "Close" })] });
}

/** A text as it is, line by line. */
function inFull(text: string): Widget {
  return new Widget({ node: h("pre", { class: "nbpipe-said" }, text) });
}

/** Ask for an export; resolves to what became of it. */
function exported(run: RunInKernel, path: string, overwrite: boolean): Promise<Progress> {
  const { session } = run;
  return new Promise((then) => {
    session.dismissExport();
    session.export(path, overwrite);
    const hear = () => {
      const { progress, isBusy } = session.exports;
      if (!isBusy) {
        unlisten();
        then(progress);
        session.dismissExport();
      }
    };
    const unlisten = session.listen(hear);
    hear();
  });
}
