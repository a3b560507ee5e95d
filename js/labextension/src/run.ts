/** RunInKernel: one run of a kernel, to which its panel speaks as to a widget. */

import type { ToKernel, ToRuns } from "@nbpipe/protocol";
import type { Model } from "@nbpipe/widgets/src/anywidget";
import { Sections } from "@nbpipe/widgets/src/sections";
import { Session } from "@nbpipe/widgets/src/session";

type Callback = (...given: unknown[]) => void;

export class RunInKernel implements Model {
  /** Whoever has this has a kernel. */
  readonly widget_manager = { kernel: true };
  readonly sections = new Sections();
  readonly session: Session;
  private readonly callbacks = new Map<string, Set<Callback>>();

  /** `deliver` throws where the kernel cannot be reached. */
  constructor(
    readonly number: number,
    private readonly deliver: (message: ToRuns) => void,
  ) {
    this.session = new Session(this);
  }

  /** Called when the run is gone, or its kernel. */
  dispose(): void {
    this.call("comm_live_update");
    this.session.dispose();
  }

  receive(message: unknown): void {
    this.call("msg:custom", message, []);
  }

  /** Nothing is kept of it in the page. */
  get(): undefined {
    return undefined;
  }

  on(name: string, callback: Callback): void {
    const known = this.callbacks.get(name) ?? new Set();
    this.callbacks.set(name, known.add(callback));
  }

  off(name: string, callback: Callback): void {
    this.callbacks.get(name)?.delete(callback);
  }

  send(message: unknown): void {
    this.deliver({ op: "run", run: this.number, message: message as ToKernel });
  }

  private call(name: string, ...given: unknown[]): void {
    for (const callback of this.callbacks.get(name) ?? []) {
      callback(...given);
    }
  }
}
