/** Exports: the one in progress, or the result of the last. */

import type { Ack, Exported } from "@nbpipe/protocol";

/** `path` is the path that was asked for; `written` is the absolute path of the file. */
export type Progress =
  | { readonly phase: "none" }
  | {
      readonly phase: "asked" | "writing";
      readonly id: number;
      readonly path: string;
      readonly sent_ms: number;
    }
  | { readonly phase: "done"; readonly written: string; readonly notes: readonly string[] }
  | {
      readonly phase: "refused";
      readonly path: string;
      readonly error: string;
      readonly edited: boolean;
    };

type Send = (path: string, overwrite: boolean) => number | null;

const NONE: Progress = { phase: "none" };

export class Exports {
  progress: Progress = NONE;

  constructor(
    private readonly send: Send,
    private readonly now: () => number = () => Date.now(),
  ) {}

  get isBusy(): boolean {
    return this.flight() !== undefined;
  }

  /** Ask for an export, unless one is in progress. */
  ask(path: string, overwrite: boolean): void {
    if (this.isBusy) {
      return;
    }
    const id = this.send(path, overwrite);
    if (id === null) {
      this.refuse(path, "not sent: there is no kernel");
    } else {
      this.progress = { phase: "asked", id, path, sent_ms: this.now() };
    }
  }

  /** Take the answer to an export that begins or is refused; return whether it was one. */
  answer(ack: Ack): boolean {
    const flight = this.flight(ack.id);
    if (flight === undefined) {
      return false;
    }
    if (ack.ok) {
      this.progress = { ...flight, phase: "writing" };
    } else {
      this.refuse(flight.path, ack.error);
    }
    return true;
  }

  /** Take the result of an export; it may come before the answer that it begins. */
  end(exported: Exported): void {
    const flight = this.flight(exported.id);
    if (flight === undefined) {
      return; // another page asked for it
    }
    if (exported.ok) {
      this.progress = { phase: "done", written: exported.path, notes: exported.notes };
    } else {
      this.refuse(flight.path, exported.error, exported.edited);
    }
  }

  /** Forget the result of the last one. */
  dismiss(): void {
    if (!this.isBusy) {
      this.progress = NONE;
    }
  }

  /** Give up the one in progress: its kernel is gone. */
  forget(): void {
    const flight = this.flight();
    if (flight !== undefined) {
      this.refuse(flight.path, "the kernel is gone; what became of the export is not known");
    }
  }

  /** How long an export has waited to be begun [ms]. */
  waited_ms(): number {
    return this.progress.phase === "asked" ? this.now() - this.progress.sent_ms : 0;
  }

  private refuse(path: string, error: string, edited = false): void {
    this.progress = { phase: "refused", path, error, edited };
  }

  private flight(id?: number): Extract<Progress, { phase: "asked" | "writing" }> | undefined {
    const { progress } = this;
    const isFlight = progress.phase === "asked" || progress.phase === "writing";
    return isFlight && (id === undefined || progress.id === id) ? progress : undefined;
  }
}
