/** A kernel, made up: JupyterLab's part of the conversation, without JupyterLab. */

import type { Kernel } from "@jupyterlab/services";
import { RUNS_PROTOCOL, RUNS_TARGET, type ToRuns } from "@nbpipe/protocol";

type Slot = (sender: unknown, args: unknown) => void;

class MadeUpSignal {
  private readonly slots = new Set<Slot>();

  connect(slot: Slot): void {
    this.slots.add(slot);
  }

  disconnect(slot: Slot): void {
    this.slots.delete(slot);
  }

  emit(args: unknown): void {
    for (const slot of this.slots) {
      slot(this, args);
    }
  }

  get size(): number {
    return this.slots.size;
  }
}

interface MadeUpComm {
  onMsg: (message: unknown) => void;
  onClose: () => void;
  send: (data: unknown) => void;
}

/** Rows as a kernel sends them. */
export function rowOf(changes: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    run: 1,
    title: "files > decode",
    variable: "run",
    cell: "a1",
    state: "running",
    epoch: 0,
    done: 12,
    total: 40,
    unit: "batches",
    rate: 3.5,
    left_s: 8,
    limit: "decode",
    severity: "info",
    sentence: "decode limits",
    evidence: "busy 97%",
    suggestion: { stage: "decode", knob: "concurrency", value: 10 },
    actions: ["pause", "stop"],
    ...changes,
  };
}

export class MadeUpKernel {
  readonly id = "k1";
  readonly statusChanged = new MadeUpSignal();
  readonly connectionStatusChanged = new MadeUpSignal();
  readonly iopubMessage = new MadeUpSignal();
  readonly isDisposed = false;
  readonly supportsSubshells = false;
  readonly info = Promise.resolve({});
  /** What was sent on the comm. */
  readonly sent: ToRuns[] = [];
  /** How often it was asked for the comm. */
  asked = 0;
  /** The comms of nbpipe that it has; none before nbpipe is imported. */
  comms: string[] = [];
  comm: MadeUpComm | null = null;

  /** As JupyterLab has it. */
  get connection(): Kernel.IKernelConnection {
    return this as unknown as Kernel.IKernelConnection;
  }

  async requestCommInfo(): Promise<unknown> {
    this.asked += 1;
    const comms = this.comms.map((id) => [id, { target_name: RUNS_TARGET }]);
    return { content: { status: "ok", comms: Object.fromEntries(comms) } };
  }

  createComm(): MadeUpComm {
    const nothing = () => {};
    const send = (data: unknown) => this.sent.push(data as ToRuns);
    this.comm = { onMsg: nothing, onClose: nothing, send };
    return this.comm;
  }

  receive(data: unknown): void {
    this.comm?.onMsg({ content: { data } });
  }

  hello(...runs: Record<string, unknown>[]): void {
    this.receive({ type: "hello", protocol: RUNS_PROTOCOL, version: "0.1.0", runs });
  }

  /** A cell has ended. */
  endCell(): void {
    this.publish("status", { execution_state: "idle" });
  }

  /** A cell has sent something. */
  publish(type: string, content: unknown): void {
    const parent_header = { msg_type: "execute_request" };
    this.iopubMessage.emit({ header: { msg_type: type }, parent_header, content });
  }

  restart(): void {
    this.comm = null;
    this.comms = [];
    this.statusChanged.emit("restarting");
    this.statusChanged.emit("starting");
  }

  sentOf<K extends ToRuns["op"]>(op: K): Extract<ToRuns, { op: K }>[] {
    return this.sent.filter((message) => message.op === op) as Extract<ToRuns, { op: K }>[];
  }

  /** How many listen. */
  listeners(): number {
    const all = [this.statusChanged, this.connectionStatusChanged, this.iopubMessage];
    return all.reduce((sum, signal) => sum + signal.size, 0);
  }
}
