/** Starter: the buttons above a pipeline in a notebook: start it, or export it. */

import { type FromKernel, parseMessage, type ToKernel } from "@nbpipe/protocol";
import type { Model } from "./anywidget";
import { Conversation } from "./conversation";
import { CopyButton } from "./copy";
import { button, h, setAttribute, setClass, setDisabled, setHidden, setText } from "./dom";
import { ExportForm } from "./export-form";
import { icon } from "./icons";
import type { Sections } from "./sections";

const GONE = "The kernel was restarted; run the cell again.";
const NO_KERNEL = "not sent: there is no kernel";

/** The state of the pipeline, and the conversation with the kernel; one for each widget. */
export class Starter extends Conversation {
  override link: Conversation["link"] = "live";
  /** Why it was not started, or that the kernel is gone. */
  notice = "";
  isAsked = false;
  private asked = 0;

  constructor(model: Model) {
    super(model);
    this.subscribe({
      "msg:custom": this.onMessage,
      "change:started": this.notify,
      comm_live_update: this.onRestart,
    });
  }

  /** The variable of the run that was started here; "" before. */
  get started(): string {
    const name = this.model.get("started");
    return typeof name === "string" ? name.slice(0, 200) : "";
  }

  start(): void {
    this.asked = this.nextId();
    this.isAsked = this.send({ op: "start", id: this.asked });
    this.notice = this.isAsked ? "" : NO_KERNEL;
    this.notify();
  }

  private readonly onMessage = (content: unknown): void => {
    let message: FromKernel;
    try {
      message = parseMessage(content);
    } catch (error) {
      console.warn(`[nbpipe] a message was ignored: ${String(error)}`);
      return;
    }
    if (message.type === "exported") {
      this.exports.end(message);
    } else if (message.type === "ack" && !this.exports.answer(message)) {
      this.isAsked = this.isAsked && message.id !== this.asked;
      this.notice = message.ok ? "" : message.error;
    }
    this.notify();
  };

  /** Called when the kernel was restarted: the widgets' connections were cut. */
  private readonly onRestart = (): void => {
    this.link = "kernelGone";
    this.notice = GONE;
    this.exports.forget();
    this.notify();
  };

  protected send(message: ToKernel): boolean {
    try {
      this.model.send(message);
      return this.link !== "kernelGone";
    } catch {
      return false; // the kernel is dead, or there was none
    }
  }
}

/** One picture of a starter in the page. */
export class StarterView {
  readonly el = h("div", {
    class: "nbpipe-panel",
    role: "region",
    "aria-label": "nbpipe pipeline",
  });
  private readonly start = button({ class: "start", "data-op": "start" }, icon("running").el);
  private readonly notice = h("span", { class: "told", role: "status" });
  private readonly next = h("span", { class: "next", "data-field": "next" });
  private readonly name = h("code", {});
  private readonly loop = h("code", {});
  private readonly copy = new CopyButton("copy-next", this.loop);
  private readonly exports: ExportForm;
  private readonly unlisten: () => void;

  constructor(
    private readonly starter: Starter,
    sections: Sections,
  ) {
    this.exports = new ExportForm(starter, sections);
    this.start.append(h("span", { class: "label" }, "Start here"));
    this.start.title = "start a run and show its panel; it takes no batch before your loop does";
    this.start.addEventListener("click", () => starter.start());
    this.next.append("Started: ", this.name, "Next, in a cell: ", this.loop, this.copy.el);
    const row = h(
      "div",
      { class: "start-row" },
      this.start,
      this.exports.opener,
      this.next,
      this.notice,
    );
    this.el.append(h("div", { class: "starter" }, row, this.exports.el));
    this.unlisten = starter.listen(() => this.update());
    this.update();
  }

  dispose(): void {
    this.unlisten();
    this.el.remove();
  }

  private update(): void {
    const { started, link, notice, isAsked } = this.starter;
    const isStarted = started !== "";
    setAttribute(
      this.el,
      "data-state",
      link === "kernelGone" ? "gone" : isStarted ? "started" : "ready",
    );
    setHidden(this.start, isStarted || link === "kernelGone");
    setDisabled(this.start, isAsked);
    this.exports.update({ actions: isStarted ? [] : ["export"] });
    setHidden(this.next, !isStarted || link === "kernelGone");
    setText(this.name, started);
    setText(this.loop, `for batch in ${started}:`);
    this.copy.offer(isStarted ? `for batch in ${started}:\n    ` : "", "Copy");
    setText(this.notice, notice);
    setClass(this.notice, "refused", notice !== "");
  }
}
