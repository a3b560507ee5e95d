/** KernelRuns: the runs of one kernel, and the conversation with it on the comm "nbpipe.runs". */

import type { Kernel, KernelMessage } from "@jupyterlab/services";
import {
  parseRuns,
  type Row,
  RUNS_PROTOCOL,
  RUNS_TARGET,
  type RunsAnswer,
  type RunsHello,
  type RunsOp,
  type ToRuns,
} from "@nbpipe/protocol";
import { randomName } from "@nbpipe/widgets/src/view";
import { OpenRuns } from "./open-runs";
import { RunInKernel } from "./run";

/**
 * The state of the kernel: it was asked whether it has nbpipe, it has none, it has it and was sent a
 * hello, it answered, it has an older or newer protocol, it is dead.
 */
export type Phase = "looking" | "absent" | "greeted" | "live" | "older" | "newer" | "dead";

/** A hello without an answer is sent again: a busy kernel may lose a message. */
const FIRST_AGAIN_MS = 1000;
const LAST_AGAIN_MS = 8000;
/** When the kernel is asked again for the comm, where it has not answered. */
const ASK_AGAIN_MS = [500, 2000, 8000];
const ALIVE_MS = 30_000;
const CONNECT_MS = 2000;
const ANSWER_MS = 30_000;

type Listener = () => void;

interface Question {
  readonly answer: (answer: RunsAnswer) => void;
  readonly timer: ReturnType<typeof setTimeout>;
}

export class KernelRuns {
  phase: Phase = "looking";
  rows: readonly Row[] = [];
  /** The kernel's nbpipe and protocol. */
  version = "";
  protocol = 0;
  /** The kernel has not answered for a while. */
  isSilent = false;

  private readonly view = randomName();
  private readonly persisted: OpenRuns;
  private readonly listeners = new Set<Listener>();
  private readonly runs = new Map<number, RunInKernel>();
  private readonly questions = new Map<number, Question>();
  private comm: Kernel.IComm | null = null;
  private isAsking = false;
  private askAgain = false;
  private isRestarting = false;
  private isVisible = document.visibilityState !== "hidden";
  private id = Math.floor(Math.random() * 2 ** 30);
  private again_ms = FIRST_AGAIN_MS;
  private againTimer: ReturnType<typeof setTimeout> | undefined;
  private readonly aliveTimer = setInterval(() => this.stayAlive(), ALIVE_MS);

  constructor(
    private readonly kernel: Kernel.IKernelConnection,
    private refresh_s: number,
  ) {
    this.persisted = new OpenRuns(kernel.id);
    kernel.statusChanged.connect(this.onStatus);
    kernel.connectionStatusChanged.connect(this.onConnection);
    kernel.iopubMessage.connect(this.onIopub);
    document.addEventListener("visibilitychange", this.onSight);
    this.look();
  }

  dispose(): void {
    this.kernel.statusChanged.disconnect(this.onStatus);
    this.kernel.connectionStatusChanged.disconnect(this.onConnection);
    this.kernel.iopubMessage.disconnect(this.onIopub);
    document.removeEventListener("visibilitychange", this.onSight);
    clearInterval(this.aliveTimer);
    this.forget();
    this.listeners.clear();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The run of a number, as its panel has it; undefined where there is none. */
  run(number: number): RunInKernel | undefined {
    return this.runs.get(number);
  }

  set refresh(refresh_s: number) {
    this.refresh_s = refresh_s;
    if (this.phase === "live") {
      this.send({ op: "settings", id: this.nextId(), view: this.view, refresh_s });
    }
  }

  /** Ask all runs for something; resolves to why it was refused, "" where it was not. */
  async all(op: RunsOp): Promise<string> {
    return (await this.ask((id) => ({ op, id }))).error;
  }

  /** Ask one run to stop. */
  stop(run: number): void {
    this.send({ op: "run", run, message: { op: "stop", id: this.nextId() } });
  }

  /** The code of a run's pipeline, with the tuned values. */
  chain(run: number): Promise<RunsAnswer> {
    return this.ask((id) => ({ op: "chain", run, id }));
  }

  // -- finding the comm ---------------------------------------------------------------------------
  /** Ask the kernel for the comm. A kernel without nbpipe has none. */
  private look(): void {
    if (this.isAsking) {
      this.askAgain = true;
    } else if (this.comm === null && !this.kernel.isDisposed) {
      this.isAsking = true;
      void this.find().finally(() => {
        this.isAsking = false;
        if (this.askAgain) {
          this.askAgain = false;
          this.look();
        }
      });
    }
  }

  private async find(): Promise<void> {
    try {
      const { content } = await this.commInfo();
      const comms = content.status === "ok" ? content.comms : {};
      const [id] = Object.keys(comms).filter((one) => comms[one]?.target_name === RUNS_TARGET);
      if (id === undefined) {
        this.become("absent");
      } else {
        await this.connect(id);
      }
    } catch {
      // The kernel was restarted or closed before it answered: then it is asked again.
    }
  }

  /** Ask a few times: a message that comes together with a cell waits until the cell has ended. */
  private commInfo(): Promise<KernelMessage.ICommInfoReplyMsg> {
    return new Promise((answer, fail) => {
      const ask = (): void => {
        if (this.kernel.isDisposed) {
          fail(new Error("there is no kernel"));
          return;
        }
        const asked = this.kernel.requestCommInfo({ target_name: RUNS_TARGET });
        asked.then(answer, fail).finally(() => timers.forEach(clearTimeout));
      };
      const timers = ASK_AGAIN_MS.map((after_ms) => setTimeout(ask, after_ms));
      ask();
    });
  }

  private async connect(id: string): Promise<void> {
    const comm = this.kernel.createComm(RUNS_TARGET, id);
    comm.onMsg = (message) => this.receive(message.content.data);
    comm.onClose = () => {
      this.forget();
      this.look();
    };
    this.comm = comm;
    this.become("greeted");
    await started(this.kernel, comm);
    if (this.comm === comm) {
      this.again_ms = FIRST_AGAIN_MS;
      this.greet();
    }
  }

  /** Say hello until it is answered. */
  private greet(): void {
    clearTimeout(this.againTimer);
    if (this.comm === null || !this.isVisible) {
      return;
    }
    this.send({ op: "hello", protocol: RUNS_PROTOCOL, view: this.view });
    this.againTimer = setTimeout(() => {
      this.isSilent = true;
      this.again_ms = Math.min(2 * this.again_ms, LAST_AGAIN_MS);
      this.greet();
      this.notify();
    }, this.again_ms);
  }

  /** The comm is gone, and its runs. */
  private forget(): void {
    clearTimeout(this.againTimer);
    this.comm = null;
    this.isSilent = false;
    this.rows = [];
    for (const run of this.runs.values()) {
      run.dispose();
    }
    this.runs.clear();
    for (const id of [...this.questions.keys()]) {
      this.settle(refused(id, "the kernel was restarted"));
    }
    this.become("looking");
  }

  // -- what the kernel does -----------------------------------------------------------------------
  private readonly onStatus = (_: unknown, status: Kernel.Status): void => {
    if (status === "restarting" || status === "autorestarting") {
      this.isRestarting = true;
      this.persisted.clear();
      this.forget();
    } else if (status === "dead") {
      this.forget();
      this.become("dead");
    } else if (this.isRestarting && status !== "unknown") {
      this.isRestarting = false;
      this.look();
    }
  };

  /** Messages that were sent while the connection was cut are lost. */
  private readonly onConnection = (_: unknown, status: Kernel.ConnectionStatus): void => {
    if (status === "connected") {
      this.greet();
      this.look();
    }
  };

  /** A cell that ends or shows a widget may have imported nbpipe; a running cell announces it. */
  private readonly onIopub = (_: unknown, message: KernelMessage.IIOPubMessage): void => {
    if (this.comm !== null) {
      return;
    }
    const { msg_type: type } = message.header;
    const isCell = (message.parent_header as { msg_type?: string }).msg_type === "execute_request";
    const { execution_state: state, data } = message.content as {
      execution_state?: string;
      data?: { type?: unknown };
    };
    const isEnd = type === "status" && state === "idle" && isCell;
    if (isEnd || type === "comm_open" || (type === "comm_msg" && data?.type === "here")) {
      this.look();
    }
  };

  private receive(data: unknown): void {
    try {
      const message = parseRuns(data);
      if (message.type === "hello") {
        this.onHello(message);
      } else if (message.type === "runs") {
        this.take(message.runs);
      } else if (message.type === "run") {
        this.runs.get(message.run)?.receive(message.message);
      } else if (message.type !== "here") {
        this.settle(message);
      }
    } catch (error) {
      console.warn(`[nbpipe] a message was ignored: ${String(error)}`);
    }
  }

  private onHello({ protocol, version, runs }: RunsHello): void {
    clearTimeout(this.againTimer);
    this.isSilent = false;
    this.protocol = protocol;
    this.version = version;
    if (protocol === RUNS_PROTOCOL) {
      this.phase = "live";
      this.send({ op: "settings", id: this.nextId(), view: this.view, refresh_s: this.refresh_s });
      this.take(runs);
    } else {
      this.become(protocol < RUNS_PROTOCOL ? "older" : "newer");
    }
  }

  private take(rows: readonly Row[]): void {
    this.rows = rows;
    const here = new Set(rows.map((row) => row.run));
    for (const [number, run] of this.runs) {
      if (!here.has(number)) {
        run.dispose();
        this.runs.delete(number);
      }
    }
    for (const { run } of rows) {
      if (!this.runs.has(run)) {
        const send = (message: ToRuns) => this.deliver(message);
        this.runs.set(run, new RunInKernel(run, this.persisted, send));
      }
    }
    this.notify();
  }

  // -- what the page does -------------------------------------------------------------------------
  /** A hidden page needs no messages. */
  private readonly onSight = (): void => {
    const isVisible = document.visibilityState !== "hidden";
    if (isVisible !== this.isVisible) {
      this.isVisible = isVisible;
      if (isVisible) {
        this.greet();
      } else {
        clearTimeout(this.againTimer);
        this.send({ op: "view", id: this.nextId(), view: this.view, open: false });
      }
    }
  };

  private stayAlive(): void {
    if (this.phase === "live" && this.isVisible) {
      this.send({ op: "alive", id: this.nextId(), views: [this.view] });
    }
  }

  private ask(question: (id: number) => ToRuns): Promise<RunsAnswer> {
    const id = this.nextId();
    return new Promise((answer) => {
      const late = refused(id, "the kernel did not answer");
      const timer = setTimeout(() => this.settle(late), ANSWER_MS);
      this.questions.set(id, { answer, timer });
      if (!this.send(question(id))) {
        this.settle(refused(id, "there is no kernel"));
      }
    });
  }

  private settle(answer: RunsAnswer): void {
    const question = this.questions.get(answer.id);
    if (question !== undefined) {
      this.questions.delete(answer.id);
      clearTimeout(question.timer);
      question.answer(answer);
    }
  }

  private send(message: ToRuns): boolean {
    try {
      this.deliver(message);
      return true;
    } catch {
      return false; // the kernel is dead or starting: its status says so
    }
  }

  private deliver(message: ToRuns): void {
    if (this.comm === null) {
      throw new Error("there is no kernel");
    }
    this.comm.send({ ...message });
  }

  private become(phase: Phase): void {
    this.phase = phase;
    this.notify();
  }

  private notify(): void {
    for (const listener of this.listeners) {
      listener();
    }
  }

  private nextId(): number {
    this.id += 1;
    return this.id;
  }
}

function refused(id: number, error: string): RunsAnswer {
  return { type: "ack", id, ok: false, code: "", error };
}

/** A comm may have a thread of its own in the kernel, which a busy cell does not block. */
async function started(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Promise<void> {
  const { subshellStarted } = comm as { subshellStarted?: Promise<void> }; // JupyterLab 4.4
  await kernel.info.catch(() => undefined);
  if (kernel.supportsSubshells && subshellStarted !== undefined) {
    const late = new Promise<void>((then) => setTimeout(then, CONNECT_MS));
    await Promise.race([subshellStarted.catch(() => undefined), late]);
  }
}
