/** View: one picture of a session in the page. */

import { Chart } from "./chart";
import { h, setAttribute, setHidden } from "./dom";
import { Header } from "./header";
import { KernelGone } from "./kernel-gone";
import { Log } from "./log";
import type { Sections } from "./sections";
import type { Session } from "./session";
import { Table } from "./table";
import { TunedList } from "./tuned-list";
import { TunerLine } from "./tuner";
import { Verdict } from "./verdict";

/** A view that was out of sight for so long is closed. */
const LEAVE_MS = 2000;

export class View {
  readonly el = h("div", { class: "nbpipe-panel", role: "region", "aria-label": "nbpipe run" });
  private readonly id = randomName();
  private readonly header: Header;
  private readonly kernelGone = new KernelGone();
  private readonly verdict: Verdict;
  private readonly tuner: TunerLine;
  private readonly table: Table;
  private readonly chart: Chart;
  private readonly log: Log;
  private readonly tuned: TunedList;
  private readonly unlisten: () => void;
  private readonly watcher: IntersectionObserver | undefined;
  private onScreen = true;
  private frame = 0;
  private leaving: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.header = new Header(session, sections);
    this.verdict = new Verdict(session);
    this.tuner = new TunerLine(session);
    this.table = new Table(session, sections);
    this.chart = new Chart(session, sections);
    this.log = new Log(session, sections);
    this.tuned = new TunedList(session, sections);
    const parts = [this.header, this.kernelGone, this.verdict, this.tuner, this.table];
    const foot = h("footer", { class: "foot" }, this.chart.el, this.log.el, this.tuned.el);
    this.el.append(h("div", { class: "inner" }, ...parts.map((part) => part.el), foot));
    this.unlisten = session.listen(() => this.schedule());
    document.addEventListener("visibilitychange", this.onSight);
    if (typeof IntersectionObserver === "function") {
      this.watcher = new IntersectionObserver((entries) => this.onSeen(entries));
      this.watcher.observe(this.el);
    }
    this.paint();
    this.onSight();
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.leaving);
    this.unlisten();
    document.removeEventListener("visibilitychange", this.onSight);
    this.watcher?.disconnect();
    this.session.closeView(this.id);
    this.table.dispose();
    this.chart.dispose();
    this.el.remove();
  }

  /** Out of sight, nothing is drawn, and the kernel need send nothing; a short while changes nothing. */
  private readonly onSight = (): void => {
    clearTimeout(this.leaving);
    if (document.visibilityState === "hidden") {
      this.session.closeView(this.id);
    } else if (this.onScreen) {
      this.session.openView(this.id);
      this.schedule();
    } else {
      this.leaving = setTimeout(() => this.session.closeView(this.id), LEAVE_MS);
    }
  };

  private onSeen(entries: readonly IntersectionObserverEntry[]): void {
    const onScreen = entries.at(-1)?.isIntersecting ?? true;
    if (onScreen !== this.onScreen) {
      this.onScreen = onScreen;
      this.onSight();
    }
  }

  private schedule(): void {
    if (this.frame === 0 && document.visibilityState !== "hidden") {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.paint();
      });
    }
  }

  private paint(): void {
    const { snapshot, link } = this.session;
    const enabled = link === "live" && snapshot?.state !== "closed";
    const kernelGone = link === "kernelGone";
    setAttribute(this.el, "data-state", kernelGone ? "gone" : (snapshot?.state ?? "unknown"));
    setAttribute(this.el, "data-link", link);
    setAttribute(
      this.el,
      "data-severity",
      kernelGone ? "info" : (snapshot?.diagnosis.severity ?? "info"),
    );
    if (!this.onScreen) {
      return;
    }
    this.header.update(snapshot, enabled);
    this.kernelGone.update(kernelGone);
    this.verdict.update(snapshot, enabled);
    setHidden(this.verdict.el, kernelGone);
    if (snapshot !== null) {
      this.tuner.update(snapshot, enabled);
      this.table.update(snapshot, enabled);
      this.log.update();
      this.tuned.update();
      this.chart.update();
    }
  }
}

/** A name for a view; crypto.randomUUID is missing where a page came over plain http. */
export function randomName(): string {
  const parts = crypto.getRandomValues(new Uint32Array(4));
  return [...parts].map((part) => part.toString(16).padStart(8, "0")).join("");
}
