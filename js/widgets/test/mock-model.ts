/** A model as anywidget hands it over, and the kernel behind it, both made up. */

import type { ToKernel } from "@nbpipe/protocol";
import { sample } from "../../protocol/test/sample";
import { Callbacks, type Model } from "../src/anywidget";

export class MockModel extends Callbacks implements Model {
  readonly sent: ToKernel[] = [];
  /** Whether `send` throws, as it does when the kernel is dead. */
  dead = false;
  /** What the page says of its kernel; nothing here. */
  widget_manager: unknown = undefined;

  /** The name of the run's variable. */
  variable = "";

  constructor(public saved: unknown = sample({ actions: ["pause", "stop"] })) {
    super();
  }

  get(name: string): unknown {
    return { snapshot: JSON.stringify(this.saved), variable: this.variable }[name];
  }

  send(content: unknown): void {
    if (this.dead) {
      throw new Error("Kernel is dead");
    }
    this.sent.push(content as ToKernel);
  }

  receive(content: unknown): void {
    this.call("msg:custom", content, []);
  }

  /** The kernel is started anew: JupyterLab cuts the widgets off. */
  restart(): void {
    this.call("comm_live_update");
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
    this.call(`change:${name}`);
  }

  /** The messages of one kind. */
  sentOf<K extends ToKernel["op"]>(op: K): Extract<ToKernel, { op: K }>[] {
    return this.sent.filter((message) => message.op === op) as Extract<ToKernel, { op: K }>[];
  }
}
