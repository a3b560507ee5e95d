/** Conversation: what a widget says to its kernel and hears of it, whatever it is about. */

import type { ToKernel } from "@nbpipe/protocol";
import type { Callback, Model } from "./anywidget";
import { Exports } from "./exports";

/** Whether a kernel is there: not known yet, answering, none, or another one than the run's. */
export type Link = "unknown" | "live" | "none" | "kernelGone";

export abstract class Conversation {
  link: Link = "unknown";
  readonly exports = new Exports((path, overwrite) => {
    const id = this.nextId();
    return this.send({ op: "export", id, path, overwrite }) ? id : null;
  });

  private readonly listeners = new Set<() => void>();
  private heard: [string, Callback][] = [];
  private id = Math.floor(Math.random() * 2 ** 30);

  constructor(protected readonly model: Model) {}

  /** Listen to the model until the end. */
  protected hear(callbacks: Record<string, Callback>): void {
    this.heard = Object.entries(callbacks);
    for (const [name, callback] of this.heard) {
      this.model.on(name, callback);
    }
  }

  dispose(): void {
    for (const [name, callback] of this.heard) {
      this.model.off(name, callback);
    }
    this.listeners.clear();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Ask for the pipeline as a module. */
  export(path: string, overwrite: boolean): void {
    this.exports.ask(path, overwrite);
    this.tell();
  }

  /** Forget what became of the last export. */
  dismissExport(): void {
    this.exports.dismiss();
    this.tell();
  }

  /** Send a message; tells whether there is a kernel to hear it. */
  protected abstract send(message: ToKernel): boolean;

  protected nextId(): number {
    this.id += 1;
    return this.id;
  }

  protected readonly tell = (): void => {
    for (const listener of this.listeners) {
      listener();
    }
  };
}
