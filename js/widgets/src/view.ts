/** View: one picture of a session in the page. */

import { Chart } from "./chart";
import { h, setAttribute, setHidden } from "./dom";
import { Gone } from "./gone";
import { Header } from "./header";
import { Log } from "./log";
import type { Sections } from "./sections";
import type { Session } from "./session";
import { Table } from "./table";
import { Verdict } from "./verdict";

export class View {
  readonly el = h("div", { class: "nbpipe-panel", role: "region", "aria-label": "nbpipe run" });
  private readonly id = randomName();
  private readonly header: Header;
  private readonly gone = new Gone();
  private readonly verdict: Verdict;
  private readonly table: Table;
  private readonly chart: Chart;
  private readonly log: Log;
  private readonly unlisten: () => void;
  private readonly watcher: IntersectionObserver | undefined;
  private onScreen = true;
  private frame = 0;

  constructor(
    private readonly session: Session,
    sections: Sections,
  ) {
    this.header = new Header(session, sections);
    this.verdict = new Verdict(session);
    this.table = new Table(session, sections);
    this.chart = new Chart(session, sections);
    this.log = new Log(session, sections);
    const parts = [this.header, this.gone, this.verdict, this.table, this.chart, this.log];
    this.el.append(h("div", { class: "inner" }, ...parts.map((part) => part.el)));
    this.unlisten = session.listen(() => this.schedule());
    document.addEventListener("visibilitychange", this.onVisibility);
    if (typeof IntersectionObserver === "function") {
      this.watcher = new IntersectionObserver((entries) => this.onSeen(entries));
      this.watcher.observe(this.el);
    }
    this.paint();
    this.onVisibility();
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    this.unlisten();
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.watcher?.disconnect();
    this.session.closeView(this.id);
    this.table.dispose();
    this.chart.dispose();
    this.el.remove();
  }

  private readonly onVisibility = (): void => {
    if (document.visibilityState === "hidden") {
      this.session.closeView(this.id);
    } else {
      this.session.openView(this.id);
      this.schedule();
    }
  };

  private onSeen(entries: readonly IntersectionObserverEntry[]): void {
    this.onScreen = entries.at(-1)?.isIntersecting ?? true;
    this.schedule();
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
    const isGone = link === "gone";
    setAttribute(this.el, "data-state", isGone ? "gone" : (snapshot?.state ?? "unknown"));
    setAttribute(this.el, "data-link", link);
    this.header.update(snapshot, enabled);
    this.gone.update(isGone);
    this.verdict.update(snapshot, enabled);
    setHidden(this.verdict.el, isGone);
    if (snapshot !== null) {
      this.table.update(snapshot, enabled);
      this.log.update();
      if (this.onScreen) {
        this.table.draw();
        this.chart.update();
      }
    }
  }
}

/** A name for a view; crypto.randomUUID is missing where a page came over plain http. */
function randomName(): string {
  const parts = crypto.getRandomValues(new Uint32Array(4));
  return [...parts].map((part) => part.toString(16).padStart(8, "0")).join("");
}
