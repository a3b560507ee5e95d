/** A run that is only simulated: rates follow the knobs, so that the panel can be tried. */

import type {
  Change,
  Diagnosis,
  Exported,
  Knob,
  LastExport,
  Snapshot,
  Stage,
  Target,
  Tuned,
  Tuner,
  Workers,
} from "@nbpipe/protocol";
import { CHAINS, type Link } from "./chains";

const MORE = ["tokenize", "augment_with_a_rather_long_name", "pad", "mask", "normalise", "check"];
const BATCH = 64;
const OUTSIDE = new Set(["process", "dask"]);
const DASHBOARD = "http://127.0.0.1:8787/status";

const REFUSED = `variable 'fh' is a live TextIOWrapper on 'log.txt'; open it inside the stage instead
  used by: helper() [In[4]] <- decode() [In[4]] <- stage 'decode'`;
const EDITED = `loader.py was edited since it was exported; pass overwrite=True to replace it
--- loader.py, as it is
+++ loader.py, as it would be written
@@ -41,7 +41,7 @@
     root: Path = DATA,
     *,
-    decode_concurrency: int = 16,  # <b>measured</b> on the new machine, which has more cores than ours
+    decode_concurrency: int = 8,
     decode_prefetch: int = 32,`;
const NOTES = [
  "the generator 'rng' begins anew each time the module is imported",
  "CACHE begins empty: the exported code changes it",
];

const NOTHING: Diagnosis = {
  kind: "limits",
  severity: "info",
  stage: null,
  text: "",
  evidence: "",
  advice: "",
  code: "",
  suggestion: null,
};

/** What is found, by state; of a run under way by whether its loop waits. */
const DIAGNOSES: Readonly<Record<string, Diagnosis>> = {
  limits: {
    ...NOTHING,
    stage: "decode",
    text: "decode is the bottleneck: training waits 62% of the time.",
    evidence: "busy 97%, 16 ms a call, mostly waiting",
    advice: "Set concurrency to 10.",
    suggestion: { stage: "decode", knob: "concurrency", value: 10 },
  },
  lock: {
    ...NOTHING,
    stage: "decode",
    text: "decode is the bottleneck: training waits 62% of the time.",
    evidence:
      "busy 97%, 16 ms a call; its threads share one core, held by Python's interpreter lock",
    advice: 'More threads will not help: run it in processes, executor="process".',
    code: 'executor="process"',
  },
  keeps_up: {
    ...NOTHING,
    kind: "keeps_up",
    severity: "good",
    stage: "consumer",
    text: "The data keeps up: training waits 2% of the time.",
  },
  ready: {
    ...NOTHING,
    text: "Waiting for your loop.",
    advice: "Run `for batch in run:` in a cell.",
  },
  paused: { ...NOTHING, text: "Paused.", advice: "Press Resume or call run.resume()." },
  hung: {
    ...NOTHING,
    kind: "hangs",
    severity: "error",
    stage: "decode",
    text: "decode hangs: one call has been running for 32 s, on item 40.",
    advice: "Write timeout_s=30 to end such calls.",
    code: "timeout_s=30",
  },
  empty: {
    ...NOTHING,
    kind: "empty",
    severity: "warning",
    stage: "files",
    text: "The source gave 0 items.",
    advice: "Look at the pattern of its files.",
  },
  failed: {
    ...NOTHING,
    kind: "failed",
    severity: "error",
    stage: "decode",
    text: "decode failed.",
    evidence: "ValueError: bad header <b>JPEG</b> in photographs/1204.jpg",
    advice: "run.failures() gives inputs and tracebacks; on_error='skip' leaves such items out.",
    code: "on_error='skip'",
  },
};

/** The state that a run is in, of one that is called otherwise here. */
const STATES: Readonly<Record<string, Snapshot["state"]>> = {
  hung: "running",
  lock: "running",
  empty: "finished",
};

/** What the tuner does, step by step: old, new, rate before, why, taken back. */
const TURNS: readonly (readonly [number, number, number, string, boolean])[] = [
  [4, 8, 3.9, "the loop waits 62%; 8 calls keep its pace", false],
  [8, 16, 7.8, "trying (4: 3.9/s, 8: 7.8/s)", true],
  [16, 11, 7.9, "the fewest calls that are as fast as any (11: 9.9/s)", false],
  [0, 0, 9.9, "keeps up: 9.9 batches/s", false],
];

interface Spec {
  address: string;
  op: string;
  executor: string;
  cost_s: number;
  batches: boolean;
  shares: string | null;
  made: number;
  knobs: Knob[];
}

export class SimulatedRun {
  /** Counts changes of knobs: a tick carries the log only when it grew. */
  told = 0;
  private readonly specs: Spec[];
  private readonly changes: Change[] = [];
  private state: string;
  private elapsed_s = 33;
  private delivered = 412;
  private waited_s = 20.5;
  private undo: Target | null = null;
  private exported: { file: string; specs: Spec[] } | null = null;
  private wobble = 1;
  private starting_s: number;
  private tuner: { active: boolean; state: string } | null = null;
  private readonly tuned: Tuned[] = [];
  private next_s = 0;

  /** `more`: some were skipped, the next epoch has begun, there is a process. `starting_s`: so long all workers only start; `rest_s`: so long before this epoch [s]; `past_s`: so much history [s]. */
  constructor(
    stages: number,
    state: string,
    chain = "threads",
    starting_s = 0,
    private readonly rest_s = 0,
    private readonly more = false,
    private readonly past_s = 180,
  ) {
    this.specs = specsOf(CHAINS.get(chain) ?? [], stages);
    this.state = state;
    if (state === "ready" || state === "empty") {
      this.delivered = this.elapsed_s = this.waited_s = 0;
    }
    this.starting_s = starting_s;
  }

  /** Let time pass; returns whether anything changed. */
  step(time_s: number): boolean {
    if (!this.works) {
      return true;
    }
    this.wobble = 1 + 0.06 * Math.sin(Date.now() / 900) + 0.04 * (Math.random() - 0.5);
    this.elapsed_s += time_s;
    this.starting_s -= time_s;
    this.delivered += (this.rate() * time_s) / BATCH;
    this.waited_s += 0.62 * time_s;
    for (const spec of this.specs) {
      spec.made += this.rate() * time_s;
    }
    this.next_s -= time_s;
    if (this.tuner?.active && this.next_s < 0) {
      this.tune();
    }
    return true;
  }

  /** What the tuner does next: raises, one trial that is taken back, and rest. */
  private tune(): void {
    this.next_s = 2;
    const place = this.tuned.length;
    const turn = TURNS[place];
    if (this.tuner === null || turn === undefined) {
      return;
    }
    const [old, now, before, why, taken_back] = turn;
    const after = TURNS[place + 1]?.[2] ?? before;
    const knob = now === 0 ? "" : "decode.concurrency";
    if (knob !== "") {
      this.set({ stage: "decode", knob: "concurrency", value: now }, "autotune");
      const last = this.changes.at(-1);
      this.changes.splice(-1, 1, { ...(last as Change), old, why, taken_back });
    }
    const when_s = Date.now() / 1000;
    this.tuned.push({ when_s, knob, old, new: now, why, before, after, taken_back });
    this.tuner.state = knob === "" ? "keeps up" : "searching decode";
  }

  private tunerPart(): Tuner | null {
    const left = { stage: "read", knob: "concurrency", value: 2 };
    return this.tuner && { ...this.tuner, left_alone: [left], done: [...this.tuned] };
  }

  private switch(op: string): void {
    const active = op === "autotune";
    const state = active ? "measuring" : op === "autotune_stop" ? "stopped" : "undone";
    this.tuner = { active, state };
    if (op === "autotune_undo") {
      this.tuned.splice(0);
    }
  }

  private get works(): boolean {
    return this.state === "running" || this.state === "lock";
  }

  act(message: Record<string, unknown>): object {
    const { op } = message;
    if (op === "set") {
      return this.set(message as unknown as Target, "panel");
    }
    if (typeof op === "string" && op.startsWith("autotune")) {
      this.switch(op);
    } else if (op === "undo" && this.undo !== null) {
      this.set(this.undo, "undo");
      this.undo = null;
    } else if (op === "pause") {
      this.state = "paused";
    } else if (op === "resume") {
      this.state = "running";
    } else if (op === "stop") {
      this.state = "stopped";
    } else {
      return { ok: false, value: null, error: `there is nothing to ${String(op)}` };
    }
    return { ok: true, value: null };
  }

  /** What becomes of an export: "bad.py" is refused, "edited.py" asks, all else is written. */
  export(message: Record<string, unknown>): Exported {
    const { id, path, overwrite } = message as { id: number; path: string; overwrite: boolean };
    const told = { type: "exported", id, ok: false, path: "", notes: [], error: "" } as const;
    if (path.startsWith("bad")) {
      return { ...told, error: REFUSED, edited: false };
    }
    if (path.startsWith("edited") && !overwrite) {
      return { ...told, error: EDITED, edited: true };
    }
    this.exported = { file: path, specs: structuredClone(this.specs) };
    const folder = "/home/ada/projects/photographs/notebooks";
    return { ...told, ok: true, path: `${folder}/${path}`, notes: NOTES, edited: false };
  }

  private lastExport(): LastExport | null {
    if (this.exported === null) {
      return null;
    }
    const { file, specs } = this.exported;
    const turned = this.specs.flatMap((spec, at) =>
      spec.knobs.map((knob, place) => ({
        stage: spec.address,
        knob: knob.name,
        old: specs[at]?.knobs[place]?.value ?? 0,
        new: knob.value,
      })),
    );
    return { file, turned: turned.filter((one) => one.old !== one.new) };
  }

  snapshot(whole: boolean): Snapshot {
    const limit = this.specs.find((spec) => spec.address === "decode") ?? this.specs[0];
    const waits = limit?.address === "decode" && knobOf(limit, "concurrency") < 10;
    const failed = this.state === "failed";
    const state = STATES[this.state] ?? (this.state as Snapshot["state"]);
    const live = state === "running" || state === "paused";
    return {
      version: 1,
      title: this.specs.map((spec) => spec.address).join(" > "),
      time_s: Date.now() / 1000,
      state,
      epoch: 1,
      epochs: 3,
      epochs_begun: 1,
      delivered: Math.floor(this.delivered),
      resumed: 0,
      total: 1563,
      unit: this.specs.at(-1)?.batches ? "batches" : "items",
      skipped: this.more ? 17 : 0,
      ahead: this.more,
      items_per_s: this.works ? this.rate() / BATCH : 0,
      elapsed_s: this.elapsed_s,
      left_s: this.works ? ((1563 - this.delivered) * BATCH) / this.rate() : null,
      waited_s: this.waited_s,
      waited_share: this.state === "ready" ? 0 : waits ? 0.62 : 0.02,
      step_s: live ? 0.0291 : null,
      step_at_rest_s: null,
      cpu_cores: live ? 3.4 : null,
      memory: this.specs.length > 5 ? { held_bytes: 3.1e8, limit_bytes: 2e9 } : null,
      process_bytes: this.more ? 3.1e8 : null,
      error: failed
        ? "StageError: decode: ValueError: bad header <b>JPEG</b> in photographs/1204.jpg"
        : "",
      stages: this.specs.map((spec) => this.stage(spec)),
      diagnosis: DIAGNOSES[this.state] ?? DIAGNOSES[waits ? "limits" : "keeps_up"] ?? NOTHING,
      undo: this.undo,
      actions: [
        ...(state === "running" ? ["pause", "stop"] : []),
        ...(this.state === "paused" ? ["resume", "stop"] : []),
        ...(this.undo ? ["undo"] : []),
        ...(this.tuner?.active ? ["autotune_stop"] : ["autotune"]),
        ...(this.tuned.length > 0 ? ["autotune_undo"] : []),
        "export",
      ],
      tuner: this.tunerPart(),
      changes: whole ? [...this.changes] : null,
      failures: whole ? failures() : null,
      export: this.lastExport(),
    };
  }

  history(): object {
    const now = Date.now() / 1000;
    const length = this.elapsed_s === 0 ? 0 : this.past_s;
    const time_s = Array.from({ length }, (_, place) => now - length + place);
    const begun = now - this.elapsed_s;
    const rests = (at: number) => {
      const time = time_s[at] ?? now;
      return time < begun && time > begun - this.rest_s;
    };
    const stages: Record<string, (number | null)[]> = {};
    const line = (at: number, place: number) =>
      (at < length - 90 ? 0.55 : 1) * (1 + 0.07 * Math.sin(at / 5 + place));
    for (const [place, spec] of this.specs.entries()) {
      const rate = this.rate() / (spec.batches ? BATCH : 1);
      stages[spec.address] = time_s.map((_, at) => (rests(at) ? null : rate * line(at, place)));
    }
    stages.consumer = time_s.map((_, at) =>
      rests(at) ? null : (this.rate() / BATCH) * line(at, 6),
    );
    if (this.changes.length === 0) {
      this.note("decode.concurrency", 1, 2, "code", "", now - 130);
      this.note("decode.concurrency", 2, 4, "panel", "decode limits", now - 90);
    }
    return { time_s, stages, changes: this.changes, epoch: 1 };
  }

  private rate(): number {
    if (this.starting_s > 0) {
      return 1e-6;
    }
    const rates = this.specs
      .filter((spec) => spec.cost_s > 0)
      .map((spec) => knobOf(spec, "concurrency") / spec.cost_s);
    return Math.min(640, ...rates) * this.wobble;
  }

  private stage(spec: Spec): Stage {
    const running = this.works;
    const working = running && !(this.starting_s > 0 && OUTSIDE.has(spec.executor));
    const concurrency = knobOf(spec, "concurrency");
    const at = this.specs.indexOf(spec);
    const isInner = this.specs[at + 1]?.shares === (spec.shares ?? spec.address);
    const prefetch = isInner ? 0 : knobOf(spec, "prefetch");
    const busy = working ? Math.min(0.97, (this.rate() * spec.cost_s) / concurrency) : 0;
    const after = at > 2;
    const rest = 1 - busy;
    return {
      address: spec.address,
      op: spec.op,
      executor: spec.executor,
      place: spec.executor,
      unit: spec.batches ? "batches" : "items",
      items_out: Math.floor(spec.made / (spec.batches ? BATCH : 1)),
      items_per_s: running ? this.rate() / (spec.batches ? BATCH : 1) : 0,
      mean_per_s: (this.rate() * 0.9) / (spec.batches ? BATCH : 1),
      busy,
      starved: working && after ? rest : 0,
      blocked: working && !after ? rest * 0.9 : 0,
      waiting: this.state === "paused" ? 1 : working && !after ? rest * 0.1 : 0,
      running: running && spec.shares === null ? Math.round(concurrency * busy) : 0,
      concurrency,
      queued: after ? Math.round(prefetch * 0.1) : prefetch,
      prefetch,
      bound: isInner ? 0 : prefetch + concurrency,
      errors: spec.address === "decode" ? 12 : 0,
      retries: 0,
      latency_p50_s: spec.cost_s,
      latency_p95_s: spec.cost_s * 2.3,
      bytes_per_s: spec.op === "to_device" ? 1.3e9 : null,
      held_bytes: spec.op === "to_device" ? 3.1e8 * 2 : null,
      workers: this.workers(spec),
      shares: spec.shares,
      knobs: isInner ? spec.knobs.filter(({ name }) => name !== "prefetch") : spec.knobs,
    };
  }

  private workers(spec: Spec): Workers | null {
    if (!OUTSIDE.has(spec.executor) || spec.shares !== null) {
      return null;
    }
    const count = this.state === "closed" ? 0 : knobOf(spec, "concurrency");
    const starting = this.starting_s > 0 ? count : 0;
    const memory_bytes = starting > 0 ? 0 : 3.05e8 * count;
    return { count, starting, memory_bytes, link: spec.executor === "dask" ? DASHBOARD : null };
  }

  private set({ stage, knob, value }: Target, by: string): object {
    const spec = this.specs.find(({ address }) => address === stage);
    const found = spec?.knobs.find(({ name }) => name === knob);
    if (spec === undefined || found === undefined) {
      return { ok: false, value: null, error: `no knob '${stage}.${knob}'` };
    }
    const { value: old, minimum, maximum, unit } = found;
    if (value < minimum || value > maximum) {
      const rule = `must be an int in [${minimum}, ${maximum}] ${unit}, got ${value}`;
      return { ok: false, value: old, error: `${stage}.${knob} ${rule}` };
    }
    const owner = knob === "concurrency" ? (spec.shares ?? stage) : stage;
    for (const other of this.specs) {
      if (other === spec || (knob === "concurrency" && (other.shares ?? other.address) === owner)) {
        other.knobs = other.knobs.map((each) => (each.name === knob ? { ...each, value } : each));
      }
    }
    this.undo = { stage: owner, knob, value: old };
    this.note(`${owner}.${knob}`, old, value, by, "");
    return { ok: true, value };
  }

  private note(knob: string, old: number, now: number, by: string, why: string, when = 0): void {
    const when_s = when || Date.now() / 1000;
    this.changes.push({ when_s, knob, old, new: now, by, why, taken_back: false });
    this.told += 1;
  }
}

function specsOf(links: readonly Link[], stages: number): Spec[] {
  const chosen = stages === 1 ? links.slice(2, 3) : links.slice(0, Math.max(stages, 2));
  const specs = chosen.map(spec);
  const more = [...MORE, ...Array.from({ length: 40 }, (_, place) => `step_${place}`)];
  for (const address of more.slice(0, Math.max(0, stages - links.length))) {
    specs.splice(specs.length - 2, 0, spec([address, "map", "thread", 0.0015]));
  }
  return specs;
}

function spec([address, op, executor, cost_s, shares = undefined]: Link): Spec {
  const batches = op === "batch" || op === "to_device";
  const knobs: Knob[] = [];
  if (op === "map" || shares !== undefined) {
    const value = (shares ?? address) === "decode" ? 4 : 2;
    knobs.push(knob("concurrency", value, OUTSIDE.has(executor) ? 256 : 1024, "calls"));
  }
  knobs.push(
    op === "to_device" ? knob("depth", 2, 16, "batches") : knob("prefetch", 16, 65_536, "items"),
  );
  const told = { address, op, executor, cost_s: cost_s || 0.0005, batches };
  return { ...told, shares: shares ?? null, made: 26_400, knobs };
}

function knob(name: string, value: number, maximum: number, unit: string): Knob {
  return { name, value, minimum: 1, maximum, default: value, unit };
}

function knobOf(spec: Spec, name: string): number {
  return spec.knobs.find((each) => each.name === name)?.value ?? 1;
}

function failures(): Snapshot["failures"] {
  return [1204, 3381].map((item, place) => ({
    stage: "decode",
    path: `(${item},)`,
    epoch: 1,
    error: "ValueError: bad header <b>JPEG</b>",
    traceback: `Traceback (most recent call last):\n  File "loader.py", line 12, in decode\n    return imread(path)\nValueError: bad header <b>JPEG</b>\n`,
    input: `PosixPath photographs/${item}.jpg`,
    attempts: 3,
    when_s: Math.floor(Date.now() / 60_000) * 60 - 40 + place,
  }));
}
