/** Facts: small numbers in a row, each under its name; one without a text is left out. */

import { h, setHidden, setText, setTitle } from "./dom";

export class Facts {
  readonly el = h("div", { class: "facts" });
  private readonly values = new Map<string, HTMLElement>();

  /** `names`: for each fact its field and the name that is shown. */
  constructor(names: Readonly<Record<string, string>>) {
    for (const [field, name] of Object.entries(names)) {
      const value = h("div", { class: "value", "data-field": field });
      this.values.set(field, value);
      this.el.append(h("div", { class: "fact" }, h("div", { class: "caption" }, name), value));
    }
  }

  /** Show something else among them; its name is hidden where it is. */
  add(name: string, shown: HTMLElement): void {
    const caption = h("div", { class: "caption", "aria-hidden": "true" }, name);
    this.el.append(h("div", { class: "fact" }, caption, shown));
  }

  update(
    texts: Readonly<Record<string, string>>,
    titles: Readonly<Record<string, string>> = {},
  ): void {
    for (const [field, value] of this.values) {
      const text = texts[field] ?? "";
      const box = value.parentElement;
      setText(value, text);
      if (box !== null) {
        setHidden(box, text === "");
        setTitle(box, titles[field] ?? "");
      }
    }
  }
}
