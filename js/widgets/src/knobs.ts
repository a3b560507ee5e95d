/** Knobs: values sent to the kernel. One message at a time; the latest value wins. */

import type { Ack } from "@nbpipe/protocol";

/** What a control shows while a value is pending, or after it was refused. */
export interface Asked {
  /** The value that is pending; undefined where none is. */
  readonly pending: number | undefined;
  /** Why the last value was refused; "" where it was not. */
  readonly error: string;
}

interface Flight {
  id: number;
  value: number;
  next: number | undefined;
  sent_ms: number;
}

/** Sends a value; returns the number of the message, or null where it could not be sent. */
type Send = (stage: string, knob: string, value: number) => number | null;

interface Refusal {
  error: string;
  at_ms: number;
}

interface Taken {
  value: number;
  at_ms: number;
}

/** A snapshot made before an answer may come after it: for so long the answer counts. */
const OVERTAKEN_MS = 600;

/** A refusal is shown for so long: it covers what is below the control. */
const SHOWN_MS = 12_000;

const NOTHING: Asked = { pending: undefined, error: "" };

export class Knobs {
  private readonly flights = new Map<string, Flight>();
  private readonly errors = new Map<string, Refusal>();
  private readonly taken = new Map<string, Taken>();

  constructor(
    private readonly send: Send,
    private readonly now: () => number = () => Date.now(),
  ) {}

  /** Ask for a value; while another is pending, this one waits, and replaces one that waited. */
  set(stage: string, knob: string, value: number): void {
    const key = keyOf(stage, knob);
    this.errors.delete(key);
    const flight = this.flights.get(key);
    if (flight !== undefined) {
      flight.next = value;
      return;
    }
    const id = this.send(stage, knob, value);
    if (id === null) {
      this.refuse(stage, knob, "not sent: there is no kernel");
    } else {
      this.flights.set(key, { id, value, next: undefined, sent_ms: this.now() });
    }
  }

  /** Take an answer; return whether it was one to a value. */
  answer(ack: Ack): boolean {
    for (const [key, flight] of this.flights) {
      if (flight.id === ack.id) {
        this.land(key, flight, ack);
        return true;
      }
    }
    return false;
  }

  private land(key: string, flight: Flight, ack: Ack): void {
    const [stage, knob] = JSON.parse(key) as [string, string];
    this.flights.delete(key);
    if (ack.value !== null) {
      this.taken.set(key, { value: ack.value, at_ms: this.now() });
    }
    if (flight.next !== undefined && flight.next !== (ack.ok ? ack.value : flight.value)) {
      this.set(stage, knob, flight.next);
    } else if (!ack.ok) {
      this.refuse(stage, knob, ack.error);
    }
  }

  /** What a control shows of a knob. */
  asked(stage: string, knob: string): Asked {
    const key = keyOf(stage, knob);
    const flight = this.flights.get(key);
    const refusal = this.errors.get(key);
    if (flight === undefined && refusal === undefined) {
      return NOTHING;
    }
    const error = refusal?.error ?? "";
    return { pending: flight && (flight.next ?? flight.value), error };
  }

  /** The value that an answer just gave, which the next snapshot may not show yet. */
  answered(stage: string, knob: string): number | undefined {
    const taken = this.taken.get(keyOf(stage, knob));
    return taken && this.now() - taken.at_ms < OVERTAKEN_MS ? taken.value : undefined;
  }

  /** Refuse a value without sending it. */
  refuse(stage: string, knob: string, error: string): void {
    this.errors.set(keyOf(stage, knob), { error, at_ms: this.now() });
  }

  /** Forget the errors that were shown long enough; return whether there were any. */
  expire(): boolean {
    const before = this.errors.size;
    for (const [key, { at_ms }] of this.errors) {
      if (this.now() - at_ms >= SHOWN_MS) {
        this.errors.delete(key);
      }
    }
    return this.errors.size < before;
  }

  /** Forget an error that was read. */
  dismiss(stage: string, knob: string): boolean {
    return this.errors.delete(keyOf(stage, knob));
  }

  /** How long the oldest message has waited for its answer [ms]; 0 where none waits. */
  waited_ms(): number {
    let oldest = this.now();
    for (const flight of this.flights.values()) {
      oldest = Math.min(oldest, flight.sent_ms);
    }
    return this.now() - oldest;
  }

  /** Give up what is pending: its kernel is gone. */
  forget(older_than_ms = 0): void {
    for (const [key, flight] of this.flights) {
      if (this.now() - flight.sent_ms >= older_than_ms) {
        this.flights.delete(key);
      }
    }
  }
}

function keyOf(stage: string, knob: string): string {
  return JSON.stringify([stage, knob]);
}
