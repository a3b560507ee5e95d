/** RunInKernel: one run of a kernel, in the form of a widget's model, for its panel. */

import type { ToKernel, ToRuns } from "@nbpipe/protocol";
import { Callbacks, type Model } from "@nbpipe/widgets/src/anywidget";
import { Sections } from "@nbpipe/widgets/src/sections";
import { Session } from "@nbpipe/widgets/src/session";
import type { OpenRuns } from "./open-runs";

export class RunInKernel extends Callbacks implements Model {
  /** There is a kernel. */
  readonly widget_manager = { kernel: true };
  readonly sections = new Sections();
  readonly session: Session;
  /** The name of its variable; "" where it has none. */
  variable = "";

  /** `persisted` holds which runs are open in the list; `deliver` throws where no kernel can be reached. */
  constructor(
    readonly number: number,
    private readonly persisted: OpenRuns,
    private readonly deliver: (message: ToRuns) => void,
  ) {
    super();
    this.session = new Session(this);
  }

  /** Called when the run is gone, or its kernel. */
  dispose(): void {
    this.call("comm_live_update");
    this.session.dispose();
  }

  /** Whether its panel is open in the list. */
  get isOpen(): boolean {
    return this.persisted.has(this.number);
  }

  set isOpen(open: boolean) {
    this.persisted.set(this.number, open);
  }

  receive(message: unknown): void {
    this.call("msg:custom", message, []);
  }

  /** Nothing else of it is saved in the page. */
  get(name: string): unknown {
    return name === "variable" ? this.variable : undefined;
  }

  send(message: unknown): void {
    this.deliver({ op: "run", run: this.number, message: message as ToKernel });
  }
}
