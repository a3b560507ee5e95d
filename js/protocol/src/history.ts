/** History: the rates of all stages over the last minutes, a ring of bounded length. */

import { type HistoryPart, POINTS } from "./messages";
import { type Change, CONSUMER, isLive, type Snapshot } from "./snapshot";

/** Points are so far apart; one that comes sooner moves the newest point instead. */
const STEP_S = 0.95;
/** So long without a point, between two epochs, is a gap. */
const GAP_S = 3;
const CHANGES = 200;

export class History {
  readonly time_s: number[] = [];
  readonly columns = new Map<string, (number | null)[]>();
  changes: readonly Change[] = [];
  /** Counts new points and new changes: a drawing is out of date where it differs. */
  version = 0;
  /** The epoch of the newest point. */
  private epoch: number | null = null;

  constructor(private readonly limit = POINTS) {}

  /** Begin again with what the kernel remembers. */
  replace(part: HistoryPart): void {
    this.time_s.splice(0, this.time_s.length, ...part.time_s);
    this.columns.clear();
    for (const [address, rates] of part.stages) {
      this.columns.set(address, [...rates]);
    }
    this.changes = part.changes.slice(-CHANGES);
    this.epoch = part.epoch;
    this.version += 1;
  }

  /** Add the rates of a snapshot, where an epoch is in progress. */
  append(snapshot: Snapshot): void {
    const last = this.time_s.at(-1);
    const before = this.time_s.at(-2);
    if (!isLive(snapshot) || (last !== undefined && snapshot.time_s < last)) {
      return; // older than what is known: a message that was overtaken
    }
    const isNext = last !== undefined && snapshot.epoch !== this.epoch;
    const isGap = isNext && snapshot.time_s - last > GAP_S;
    if (isGap) {
      this.time_s.push(last);
      for (const column of this.columns.values()) {
        column.push(null);
      }
    }
    this.epoch = snapshot.epoch;
    const joins = !isGap && before !== undefined && last !== undefined && last - before < STEP_S;
    if (joins) {
      this.time_s[this.time_s.length - 1] = snapshot.time_s;
    } else {
      this.time_s.push(snapshot.time_s);
      this.version += 1;
    }
    for (const [address, rate] of rates(snapshot)) {
      this.column(address)[this.time_s.length - 1] = rate;
    }
    this.trim();
  }

  /** Take in knob changes: those known already are not doubled; a trial may be taken back later. */
  note(changes: readonly Change[]): void {
    const known = new Map(this.changes.map((change) => [changeKey(change), change]));
    const isNew = (change: Change) =>
      known.get(changeKey(change))?.taken_back !== change.taken_back;
    if (changes.some(isNew)) {
      for (const change of changes) {
        known.set(changeKey(change), change);
      }
      this.changes = [...known.values()]
        .sort((left, right) => left.when_s - right.when_s)
        .slice(-CHANGES);
      this.version += 1;
    }
  }

  /** Rates of a stage over time; null where there is none. */
  rates(address: string): readonly (number | null)[] {
    return this.column(address);
  }

  private column(address: string): (number | null)[] {
    let column = this.columns.get(address);
    if (column === undefined) {
      column = [];
      this.columns.set(address, column);
    }
    while (column.length < this.time_s.length) {
      column.push(null);
    }
    return column;
  }

  private trim(): void {
    const excess = this.time_s.length - this.limit;
    if (excess > 0) {
      this.time_s.splice(0, excess);
      for (const column of this.columns.values()) {
        column.splice(0, excess);
      }
    }
  }
}

function* rates(snapshot: Snapshot): Generator<[string, number]> {
  for (const stage of snapshot.stages) {
    if (stage.address !== CONSUMER) {
      yield [stage.address, stage.items_per_s];
    }
  }
  yield [CONSUMER, snapshot.items_per_s];
}

function changeKey(change: Change): string {
  return `${change.when_s} ${change.knob} ${change.old} ${change.new}`;
}
