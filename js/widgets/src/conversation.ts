/** Conversation: the messages between a widget and its kernel, for a run or a pipeline. */

import type { ToKernel } from "@nbpipe/protocol";
import type { Callback, Model } from "./anywidget";
import { Exports } from "./exports";

/** Whether there is a kernel: not known yet, it answers, there is none, or it was restarted. */
export type Link = "unknown" | "live" | "none" | "kernelGone";

export abstract class Conversation {
  link: Link = "unknown";
  readonly exports = new Exports((path, overwrite) => {
    const id = this.nextId();
    return this.send({ op: "export", id, path, overwrite }) ? id : null;
  });

  private readonly listeners = new Set<() => void>();
  private subscribed: [string, Callback][] = [];
  private id = Math.floor(Math.random() * 2 ** 30);

  constructor(protected readonly model: Model) {}

  /** Listen to the model until this is disposed. */
  protected subscribe(callbacks: Record<string, Callback>): void {
    this.subscribed = Object.entries(callbacks);
    for (const [name, callback] of this.subscribed) {
      this.model.on(name, callback);
    }
  }

  dispose(): void {
    for (const [name, callback] of this.subscribed) {
      this.model.off(name, callback);
    }
    this.listeners.clear();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Export the pipeline as a module. */
  export(path: string, overwrite: boolean): void {
    this.exports.ask(path, overwrite);
    this.notify();
  }

  /** Forget the result of the last export. */
  dismissExport(): void {
    this.exports.dismiss();
    this.notify();
  }

  /** Send a message; return whether there is a kernel to get it. */
  protected abstract send(message: ToKernel): boolean;

  protected nextId(): number {
    this.id += 1;
    return this.id;
  }

  protected readonly notify = (): void => {
    for (const listener of this.listeners) {
      listener();
    }
  };
}
