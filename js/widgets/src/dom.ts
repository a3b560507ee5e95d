/** Nodes: made once, written only where something changed. Text from outside stays text. */

type Attributes = Readonly<Record<string, string>>;
type Child = Node | string;

const SVG = "http://www.w3.org/2000/svg";

/** Make an element; `attributes` hold values of our own only, text from outside is a child. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(
      name,
      name === "class" ? value.split(" ").map(className).join(" ") : value,
    );
  }
}

/** Classes have a prefix: pages have styles of their own for "row", "cell" and "progress". */
export function className(name: string): string {
  return name.startsWith("nbpipe-") ? name : `nbp-${name}`;
}

/** A button; JupyterLab's shortcuts are kept from it. */
export function button(attributes: Attributes, ...children: Child[]): HTMLButtonElement {
  return unshortened(h("button", { type: "button", ...attributes }, ...children));
}

/** JupyterLab would take arrow keys and more for itself, but for this mark on the element. */
export function unshortened<T extends HTMLElement>(element: T): T {
  element.dataset.lmSuppressShortcuts = "true";
  return element;
}

/** Write the text of a node that holds nothing else; its text node is kept. */
export function setText(node: Element, text: string): void {
  const { firstChild } = node;
  if (firstChild instanceof Text) {
    if (firstChild.data !== text) {
      firstChild.data = text;
    }
  } else if (text !== "") {
    node.textContent = text;
  }
}

/** Write a sentence; what stands between backquotes in it is code. */
export function setSentence(node: Element, sentence: string): void {
  if (node.textContent !== sentence.replaceAll("`", "")) {
    const parts = sentence.split("`");
    node.replaceChildren(...parts.map((part, at) => (at % 2 === 1 ? h("code", {}, part) : part)));
  }
}

export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

export function setTitle(node: Element, text: string): void {
  setAttribute(node, "title", text);
}

export function setClass(node: Element, name: string, on: boolean): void {
  const full = className(name);
  if (node.classList.contains(full) !== on) {
    node.classList.toggle(full, on);
  }
}

export function setHidden(node: HTMLElement, hidden: boolean): void {
  if (node.hidden !== hidden) {
    node.hidden = hidden;
  }
}

export function setDisabled(node: HTMLButtonElement | HTMLInputElement, disabled: boolean): void {
  if (node.disabled !== disabled) {
    node.disabled = disabled;
  }
}

/** A length as a custom property of the style, in whole per mille of its track. */
export function setPart(node: HTMLElement, name: string, share: number): void {
  const value = `${Math.round(Math.min(1, Math.max(0, share)) * 1000) / 10}%`;
  if (node.style.getPropertyValue(name) !== value) {
    node.style.setProperty(name, value);
  }
}
