/** ChangesSinceExport: one quiet line that lists the knobs turned since the last export. */

import type { LastExport, Snapshot } from "@nbpipe/protocol";
import { h, setHidden, setText, setTitle } from "./dom";

export class ChangesSinceExport {
  readonly el = h("p", { class: "since-export sub", "data-field": "export" });

  constructor() {
    this.el.hidden = true;
  }

  update(snapshot: Snapshot): void {
    const text = snapshot.export === null ? "" : describe(snapshot.export);
    setText(this.el, text);
    setTitle(this.el, text);
    setHidden(this.el, text === "");
  }
}

function describe({ file, turned }: LastExport): string {
  if (turned.length === 0) {
    return `exported to ${file}; no knob was turned since`;
  }
  const steps = turned.map((one) => `${one.stage}.${one.knob} ${one.old} → ${one.new}`);
  return `changed since export to ${file}: ${steps.join(", ")}`;
}
