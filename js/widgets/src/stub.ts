/**
 * What each widget brings as its module: it finds the real one in a model that all widgets of a
 * kernel share. A page loads each version once, however many widgets there are.
 */

import type { Model } from "./anywidget";

interface Given {
  readonly model: Model;
  readonly el: HTMLElement;
}
interface Module {
  initialize(given: Given): unknown;
  render(given: Given): unknown;
}
interface Code {
  /** `digest`: a name for what is packed; `packed`: module and styles, as JSON in gzip. */
  get(name: "digest" | "packed"): unknown;
}
interface Manager {
  get_model(id: unknown): Promise<Code>;
}

const TRIES = 100;
const AGAIN_MS = 100;
const KNOWN = "nbpipe front ends";

/** A page that is loaded again makes its models in any order: the shared one may come later. */
async function codeOf({ model }: Given): Promise<Code> {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await (model.widget_manager as Manager).get_model(model.get("code"));
    } catch (error) {
      if (left === 0) {
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

async function load(code: Code, scope: string): Promise<Module> {
  const packed = new Blob([code.get("packed") as BlobPart]).stream();
  const unpacked = new Response(packed.pipeThrough(new DecompressionStream("gzip")));
  const [js, css]: [string, string] = await unpacked.json();
  const style = document.createElement("style");
  style.textContent = css.replaceAll(".nbpipe-panel", `.${scope} .nbpipe-panel`);
  document.head.append(style);
  const url = URL.createObjectURL(new Blob([js], { type: "text/javascript" }));
  const module = await import(url);
  URL.revokeObjectURL(url);
  return module.default;
}

/** The real module, and the class of an element in which its style acts. */
async function moduleOf(given: Given): Promise<[Module, string]> {
  const page = globalThis as { [KNOWN]?: Record<string, Promise<Module>> };
  const code = await codeOf(given);
  const scope = `nbpipe-${code.get("digest")}`;
  page[KNOWN] ??= {};
  page[KNOWN][scope] ??= load(code, scope);
  return [await page[KNOWN][scope], scope];
}

export default {
  async initialize(given: Given) {
    const [module] = await moduleOf(given);
    return module.initialize(given);
  },
  async render(given: Given) {
    const [module, scope] = await moduleOf(given);
    given.el.classList.add(scope);
    return module.render(given);
  },
};
