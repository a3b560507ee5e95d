/** A model as anywidget hands it over, and the kernel behind it, both made up. */

import type { ToKernel } from "@nbpipe/protocol";
import { sample } from "../../protocol/test/sample";
import type { Model } from "../src/anywidget";

type Callback = (...given: unknown[]) => void;

export class MockModel implements Model {
  readonly sent: ToKernel[] = [];
  /** Whether `send` throws, as it does when the kernel is dead. */
  dead = false;
  /** What the page says of its kernel; nothing here. */
  widget_manager: unknown = undefined;
  private readonly callbacks = new Map<string, Set<Callback>>();

  constructor(public saved: unknown = sample({ actions: ["pause", "stop"] })) {}

  get(name: string): unknown {
    return name === "snapshot" ? this.saved : undefined;
  }

  on(name: string, callback: Callback): void {
    const known = this.callbacks.get(name) ?? new Set();
    this.callbacks.set(name, known.add(callback));
  }

  off(name: string, callback: Callback): void {
    this.callbacks.get(name)?.delete(callback);
  }

  send(content: unknown): void {
    if (this.dead) {
      throw new Error("Kernel is dead");
    }
    this.sent.push(content as ToKernel);
  }

  /** How many listen. */
  listeners(): number {
    return [...this.callbacks.values()].reduce((sum, known) => sum + known.size, 0);
  }

  receive(content: unknown): void {
    for (const callback of this.callbacks.get("msg:custom") ?? []) {
      callback(content, []);
    }
  }

  /** The kernel is started anew: JupyterLab cuts the widgets off. */
  restart(): void {
    for (const callback of this.callbacks.get("comm_live_update") ?? []) {
      callback();
    }
  }

  hello(changes: Record<string, unknown> = {}): void {
    const snapshot = sample({ actions: ["pause", "stop"], ...changes });
    const history = { time_s: [], stages: {}, changes: [], epoch: null };
    this.receive({ type: "hello", snapshot, history });
  }

  tick(changes: Record<string, unknown> = {}): void {
    this.receive({ type: "tick", snapshot: sample({ actions: ["pause", "stop"], ...changes }) });
  }

  /** Answer the last message. */
  ack(value: number | null, error?: string): void {
    const id = this.sent.at(-1)?.id;
    const refusal = error === undefined ? { ok: true } : { ok: false, error };
    this.receive({ type: "ack", id, value, ...refusal });
  }

  save(changes: Record<string, unknown>): void {
    this.saved = sample(changes);
    this.change("snapshot");
  }

  /** A synced trait was changed by the kernel. */
  change(name: string): void {
    for (const callback of this.callbacks.get(`change:${name}`) ?? []) {
      callback();
    }
  }

  /** The messages of one kind. */
  sentOf<K extends ToKernel["op"]>(op: K): Extract<ToKernel, { op: K }>[] {
    return this.sent.filter((message) => message.op === op) as Extract<ToKernel, { op: K }>[];
  }
}
