/** One quiet line: what was turned since the pipeline was exported. */

import type { LastExport, Snapshot } from "@nbpipe/protocol";
import { h, setHidden, setText, setTitle } from "./dom";

export class SinceExport {
  readonly el = h("p", { class: "since sub", "data-field": "export" });

  constructor() {
    this.el.hidden = true;
  }

  update(snapshot: Snapshot): void {
    const text = snapshot.export === null ? "" : wordsOf(snapshot.export);
    setText(this.el, text);
    setTitle(this.el, text);
    setHidden(this.el, text === "");
  }
}

function wordsOf({ file, turned }: LastExport): string {
  if (turned.length === 0) {
    return `exported to ${file}; no knob was turned since`;
  }
  const steps = turned.map((one) => `${one.stage}.${one.knob} ${one.old} → ${one.new}`);
  return `changed since export to ${file}: ${steps.join(", ")}`;
}
