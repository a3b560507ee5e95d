/** Export: the button that opens a form, the form, and what became of the export. */

import type { Snapshot } from "@nbpipe/protocol";
import type { Link } from "./conversation";
import { button, h, setAttribute, setDisabled, setHidden, setText, unshortened } from "./dom";
import type { Exports, Progress } from "./exports";
import { icon } from "./icons";
import { Outcome } from "./outcome";
import type { Sections } from "./sections";

const DEFAULT_PATH = "loader.py";
const SECTION = "export";

/** Who exports: a run's session, or what starts a pipeline. */
export interface Exporter {
  readonly exports: Exports;
  readonly link: Link;
  export(path: string, overwrite: boolean): void;
  dismissExport(): void;
}

export class ExportForm {
  readonly opener: HTMLButtonElement;
  readonly el = h("section", { class: "export", "aria-label": "export to a module" });
  private readonly path: HTMLInputElement;
  private readonly go = button({ class: "go", "data-op": "export-go" }, "Export");
  private readonly leave = button({ class: "leave", "data-op": "export-close" }, "Cancel");
  private readonly busy = h("span", { class: "writing", role: "status" });
  private readonly outcome: Outcome;
  private shown: Progress | undefined;
  private asked = false;

  constructor(
    private readonly exporter: Exporter,
    private readonly sections: Sections,
  ) {
    const label = h("span", { class: "label" }, "Export…");
    this.opener = button({ class: "open-export", "data-op": "export" }, icon("export").el, label);
    this.opener.title = "write the pipeline, as it is tuned now, to a Python module";
    this.opener.hidden = true;
    this.path = unshortened(h("input", { type: "text", spellcheck: "false", autocomplete: "off" }));
    this.path.value = DEFAULT_PATH;
    this.path.setAttribute("aria-label", "file to write");
    this.outcome = new Outcome((path) => this.ask(path, true), this.dismiss);
    const ask = h("div", { class: "ask" }, this.path, this.go, this.leave, this.busy);
    this.el.append(ask, this.outcome.el);
    this.listen();
    this.show(sections.isOpen(SECTION, false));
  }

  update(snapshot: Pick<Snapshot, "actions">): void {
    const { progress, isBusy } = this.exporter.exports;
    const { link } = this.exporter;
    const live = link === "live";
    setHidden(this.opener, link === "kernelGone" || !snapshot.actions.includes("export"));
    setDisabled(this.opener, !live);
    // A button that is disabled loses the focus: these only look so.
    setAttribute(this.go, "aria-disabled", String(!live || isBusy));
    setText(this.busy, isBusy ? "writing…" : "");
    if (progress !== this.shown) {
      this.shown = progress;
      this.outcome.show(progress);
      setText(this.leave, progress.phase === "done" || isBusy ? "Close" : "Cancel");
      if (this.asked && !isBusy) {
        this.asked = false;
        this.show(true); // it may have been closed meanwhile
      }
    }
  }

  private listen(): void {
    this.opener.addEventListener("click", () => (this.el.hidden ? this.open() : this.close()));
    this.go.addEventListener("click", () => this.ask(this.path.value.trim(), false));
    this.leave.addEventListener("click", () => this.close());
    this.path.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) {
        event.preventDefault();
        event.stopPropagation();
        this.ask(this.path.value.trim(), false);
      }
    });
    this.el.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        this.close();
      }
    });
  }

  private ask(path: string, overwrite: boolean): void {
    if (this.go.getAttribute("aria-disabled") !== "true") {
      this.asked = true;
      this.path.focus(); // the button that was pressed may be gone in a moment
      this.exporter.export(path, overwrite);
    }
  }

  private readonly dismiss = (): void => {
    this.path.focus();
    this.exporter.dismissExport();
  };

  private open(): void {
    this.show(true);
    this.path.focus();
    this.path.select();
  }

  private close(): void {
    this.show(false);
    this.exporter.dismissExport();
    this.opener.focus();
  }

  private show(open: boolean): void {
    this.sections.set(SECTION, open);
    setHidden(this.el, !open);
    setAttribute(this.opener, "aria-expanded", String(open));
  }
}
