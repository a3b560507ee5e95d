/** WorkersLine: the workers of a stage outside the kernel, or the bytes that it holds on a device. */

import type { Stage, Workers } from "@nbpipe/protocol";
import { h, setAttribute, setClass, setHidden, setText, setTitle, unshortened } from "./dom";
import { formatBytes, formatWorkers } from "./format";

export class WorkersLine {
  private readonly said = h("span", { class: "said", "data-field": "workers" });
  private readonly page = unshortened(
    h("a", { class: "page", target: "_blank", rel: "noopener noreferrer" }, "dashboard"),
  );
  readonly el = h("div", { class: "workers" }, this.said, this.page);

  update({ workers, items_out, held_bytes, queued, unit, place }: Stage): void {
    setHidden(this.el, workers === null && held_bytes === null);
    if (held_bytes !== null) {
      const held = held_bytes > 0 ? formatBytes(held_bytes) : "nothing";
      setText(this.said, `holds ${held}`);
      setTitle(this.said, `${queued} ${unit} on ${place} wait for the loop`);
    }
    this.showPage(workers?.link ?? null);
    if (workers === null) {
      return;
    }
    const { count, starting, memory_bytes } = workers;
    const none = count + starting === 0 && items_out === 0 ? "no workers yet" : "";
    setText(this.said, none || formatWorkers(count, starting, memory_bytes));
    setClass(this.said, "starting", starting > 0);
    setTitle(this.said, inFull(workers));
  }

  /** The reader lets only addresses of web pages through. */
  private showPage(link: string | null): void {
    setHidden(this.page, link === null);
    if (link === null) {
      this.page.removeAttribute("href");
    } else {
      setAttribute(this.page, "href", link);
      setTitle(this.page, link);
    }
  }
}

function inFull({ count, starting, memory_bytes }: Workers): string {
  if (Math.max(count, starting) === 0) {
    return "workers start with the first item";
  }
  const memory = memory_bytes > 0 ? `, ${formatBytes(memory_bytes)} of memory` : "";
  return `${count} there, ${starting} of them only starting${memory}`;
}
