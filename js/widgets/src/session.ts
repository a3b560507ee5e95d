/** Session: the state of one run in the page, and its conversation with the kernel. */

import {
  type Ack,
  type Failure,
  type FromKernel,
  History,
  type Op,
  parseMessage,
  parseSnapshot,
  type Snapshot,
  type ToKernel,
  type Tuned,
} from "@nbpipe/protocol";
import { hasKernel, type Model } from "./anywidget";
import { Conversation } from "./conversation";
import { Knobs } from "./knobs";

/** The first answer usually comes sooner; until then no notice is shown. */
const HELLO_MS = 400;
/** A page that does not report whether it has a kernel has none after a silence of this length. */
const SILENT_MS = 10_000;
const ACK_MS = 1500;
const SILENCE_MS = 3000;
const ALIVE_MS = 30_000;
/** A view without a hello asks again, less and less often: a busy kernel may lose a message. */
const FIRST_AGAIN_MS = 2000;
const LAST_AGAIN_MS = 16_000;
const CHECK_MS = 500;

export class Session extends Conversation {
  snapshot: Snapshot | null = null;
  failures: readonly Failure[] = [];
  /** What the tuner did last, oldest first. */
  tuned: readonly Tuned[] = [];
  /** Why the last button was refused. */
  refusal = "";
  readonly history = new History();
  readonly knobs = new Knobs((stage, knob, value) => {
    const id = this.nextId();
    return this.send({ op: "set", id, stage, knob, value }) ? id : null;
  });

  /** The name of the run's variable; "" where it has none. */
  get variable(): string {
    const name = this.model.get("variable");
    return typeof name === "string" ? name.slice(0, 200) : "";
  }

  private readonly views = new Set<string>();
  private readonly asked = new Map<number, { op: string; sent_ms: number }>();
  private opened_ms = 0;
  private heard_ms = 0;
  /** When a view asked for a hello that has not come yet; 0 where none waits. */
  private greeted_ms = 0;
  private again_ms = FIRST_AGAIN_MS;
  private shownNotice = "";
  private checkTimer: ReturnType<typeof setInterval> | undefined;
  private aliveTimer: ReturnType<typeof setInterval> | undefined;

  constructor(model: Model) {
    super(model);
    this.subscribe({
      "msg:custom": this.onMessage,
      "change:snapshot": this.onSaved,
      "change:variable": this.notify,
      comm_live_update: this.onRestart,
    });
    this.onSaved();
  }

  override dispose(): void {
    super.dispose();
    this.stopTimers();
  }

  openView(view: string): void {
    if (this.views.has(view)) {
      return;
    }
    this.views.add(view);
    this.opened_ms = this.heard_ms = Date.now();
    this.startTimers();
    this.again_ms = FIRST_AGAIN_MS;
    this.greet(view);
  }

  private greet(view: string): void {
    this.greeted_ms = Date.now();
    this.send({ op: "view", id: this.nextId(), view, open: true });
  }

  closeView(view: string): void {
    if (this.views.delete(view)) {
      this.send({ op: "view", id: this.nextId(), view, open: false });
    }
    if (this.views.size === 0) {
      this.stopTimers();
    }
  }

  set(stage: string, knob: string, value: number): void {
    this.knobs.set(this.ownerOf(stage, knob), knob, value);
    this.notify();
  }

  /** Stages that share their workers have one concurrency, shown at the first of them. */
  private ownerOf(address: string, knob: string): string {
    const stage = this.snapshot?.stages.find((each) => each.address === address);
    return knob === "concurrency" ? (stage?.shares ?? address) : address;
  }

  ask(op: Op): void {
    this.askFor({ op, id: this.nextId() });
  }

  /** Let the tuner turn a knob that a person turned. */
  giveBack(stage: string, knob: string): void {
    this.askFor({ op: "give_back", id: this.nextId(), stage, knob });
  }

  private askFor(message: ToKernel): void {
    this.refusal = "";
    if (this.send(message)) {
      this.asked.set(message.id, { op: message.op, sent_ms: Date.now() });
    }
    this.notify();
  }

  /** Whether the answer to a button is still to come. */
  isAsked(op: Op | "give_back"): boolean {
    return [...this.asked.values()].some((asked) => asked.op === op);
  }

  /** A notice about the conversation; "" where there is nothing to report. */
  notice(): string {
    if (this.link === "none") {
      return "saved; no kernel";
    }
    if (this.views.size === 0 || this.link === "kernelGone") {
      return "";
    }
    const now = Date.now();
    if (this.link === "unknown") {
      return now - this.opened_ms >= HELLO_MS ? "connecting" : "";
    }
    const silent_ms = now - this.heard_ms;
    if (this.link === "live" && this.snapshot?.state === "running" && silent_ms >= SILENCE_MS) {
      return `no word from the kernel for ${Math.floor(silent_ms / 1000)} s`;
    }
    const oldest = Math.min(now, ...[...this.asked.values()].map((asked) => asked.sent_ms));
    const waited_ms = Math.max(this.knobs.waited_ms(), this.exports.waited_ms(), now - oldest);
    return waited_ms >= ACK_MS ? "waiting for the kernel" : "";
  }

  private readonly onMessage = (content: unknown): void => {
    if (this.link === "kernelGone") {
      return; // the kernel that sent it was restarted
    }
    let message: FromKernel;
    try {
      message = parseMessage(content);
    } catch (error) {
      warn("a message was ignored", error);
      return;
    }
    this.link = "live";
    this.heard_ms = Date.now();
    if (message.type === "ack") {
      this.onAck(message);
    } else if (message.type === "exported") {
      this.exports.end(message);
    } else {
      if (message.type === "hello") {
        this.greeted_ms = 0;
        this.history.replace(message.history);
        this.knobs.forget(5000);
        this.asked.clear();
      }
      this.take(message.snapshot);
      this.history.append(message.snapshot);
    }
    this.notify();
  };

  private onAck(ack: Ack): void {
    if (this.knobs.answer(ack) || this.exports.answer(ack)) {
      return;
    }
    const asked = this.asked.get(ack.id);
    if (asked !== undefined) {
      this.asked.delete(ack.id);
      this.refusal = ack.ok ? "" : ack.error;
    }
  }

  /** Called when the kernel was restarted: the widgets' connections were cut. */
  private readonly onRestart = (): void => {
    this.link = "kernelGone";
    this.knobs.forget();
    this.exports.forget();
    this.asked.clear();
    this.refusal = "";
    this.notify();
  };

  private readonly onSaved = (): void => {
    const saved = this.model.get("snapshot");
    if (typeof saved !== "string" || saved === "") {
      return; // nothing is saved yet
    }
    try {
      const snapshot = parseSnapshot(JSON.parse(saved));
      if (this.snapshot === null || snapshot.time_s >= this.snapshot.time_s) {
        this.take(snapshot);
        this.notify();
      }
    } catch (error) {
      warn("a saved snapshot was ignored", error);
    }
  };

  private take(snapshot: Snapshot): void {
    this.snapshot = snapshot;
    this.failures = snapshot.failures ?? this.failures;
    this.tuned = snapshot.tuner === null ? [] : (snapshot.tuner.done ?? this.tuned);
    if (snapshot.changes !== null) {
      this.history.note(snapshot.changes);
    }
  }

  protected send(message: ToKernel): boolean {
    if (this.link === "kernelGone") {
      return false;
    }
    try {
      this.model.send(message);
      return true;
    } catch (error) {
      this.link = "none"; // the kernel is dead, or there was none
      this.knobs.forget();
      this.exports.forget();
      warn("a message was not sent", error);
      return false;
    }
  }

  private readonly check = (): void => {
    if (this.link === "unknown" && this.isAlone()) {
      this.link = "none";
    }
    this.greetAgain();
    const notice = this.notice();
    const expired = this.knobs.expire();
    if (notice !== this.shownNotice || expired) {
      this.shownNotice = notice;
      this.notify();
    }
  };

  private greetAgain(): void {
    const [view] = this.views;
    const waits = this.greeted_ms > 0 && (this.link === "unknown" || this.link === "live");
    if (waits && view !== undefined && Date.now() - this.greeted_ms >= this.again_ms) {
      this.again_ms = Math.min(2 * this.again_ms, LAST_AGAIN_MS);
      this.greet(view);
    }
  }

  /** Whether there is no kernel to answer. */
  private isAlone(): boolean {
    const silent_ms = Date.now() - this.opened_ms;
    const known = hasKernel(this.model);
    return silent_ms >= (known === null ? SILENT_MS : HELLO_MS) && known !== true;
  }

  private startTimers(): void {
    this.checkTimer ??= setInterval(this.check, CHECK_MS);
    this.aliveTimer ??= setInterval(() => {
      if (this.link !== "none") {
        this.send({ op: "alive", id: this.nextId(), views: [...this.views] });
      }
    }, ALIVE_MS);
  }

  private stopTimers(): void {
    clearInterval(this.checkTimer);
    clearInterval(this.aliveTimer);
    this.checkTimer = this.aliveTimer = undefined;
  }
}

function warn(what: string, error: unknown): void {
  console.warn(`[nbpipe] ${what}: ${error instanceof Error ? error.message : String(error)}`);
}
