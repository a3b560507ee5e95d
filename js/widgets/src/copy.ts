/** A button that copies a text; where the browser does not let it, the text is selected. */

import { button, setHidden, setText } from "./dom";

export class CopyButton {
  readonly el: HTMLButtonElement;
  private text = "";

  /** `shown` holds the text in the page. */
  constructor(
    op: string,
    private readonly shown: HTMLElement,
  ) {
    this.el = button({ class: "copy", "data-op": op }, "Copy");
    this.el.addEventListener("click", () => void this.copy());
    setHidden(this.el, true);
  }

  /** Offer a text under a label; "" offers none. */
  offer(text: string, label: string): void {
    if (text !== this.text) {
      this.text = text;
      setText(this.el, label);
    }
    setHidden(this.el, text === "");
  }

  private async copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(this.text);
      setText(this.el, "Copied");
    } catch {
      getSelection()?.selectAllChildren(this.shown);
      setText(this.el, "Selected");
    }
  }
}
