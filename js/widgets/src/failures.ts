/** The last failed items of a stage: error, place, input, traceback. */

import type { Failure } from "@nbpipe/protocol";
import { h, setText } from "./dom";
import { formatMoment } from "./format";

export class FailureList {
  readonly el = h("div", { class: "failures" });
  private shown: readonly Failure[] = [];
  private readonly summary = h("p", { class: "sub" });

  /** Show what is kept of `errors` failures. */
  update(failures: readonly Failure[], errors: number): void {
    const kept = failures.length > 0 ? `the last ${failures.length} kept` : "none kept";
    setText(this.summary, `${errors} ${errors === 1 ? "item" : "items"} failed, ${kept}`);
    if (!same(failures, this.shown)) {
      this.shown = failures;
      this.el.replaceChildren(this.summary, ...[...failures].reverse().map(entry));
    }
  }
}

function entry(failure: Failure): HTMLElement {
  const calls = `${failure.attempts} ${failure.attempts === 1 ? "call" : "calls"}`;
  const where = `${formatMoment(failure.when_s)} · item ${failure.path} of epoch ${failure.epoch} · ${calls}`;
  return h(
    "article",
    {},
    h("strong", {}, failure.error),
    h("p", { class: "sub" }, where),
    ...(failure.input === "" ? [] : [h("p", { class: "sub" }, `input: ${failure.input}`)]),
    h("pre", { tabindex: "0" }, failure.traceback),
  );
}

function same(left: readonly Failure[], right: readonly Failure[]): boolean {
  return (
    left.length === right.length &&
    left.every(({ when_s, path }, place) => {
      const other = right[place];
      return other !== undefined && other.when_s === when_s && other.path === path;
    })
  );
}
