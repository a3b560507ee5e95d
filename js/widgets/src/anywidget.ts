/** What anywidget gives to a module, and takes as one: the part of it that is used here. */

import { Sections } from "./sections";

export type Callback = (...given: unknown[]) => void;

export interface Model {
  get(name: string): unknown;
  on(name: string, callback: Callback): void;
  off(name: string, callback: Callback): void;
  send(content: unknown): void;
  /** What holds the page's widgets; JupyterLab's knows the kernel. */
  readonly widget_manager?: unknown;
}

/** Who listens to a model that anywidget does not hand over. */
export class Callbacks {
  private readonly known = new Map<string, Set<Callback>>();

  on(name: string, callback: Callback): void {
    this.known.set(name, (this.known.get(name) ?? new Set()).add(callback));
  }

  off(name: string, callback: Callback): void {
    this.known.get(name)?.delete(callback);
  }

  protected call(name: string, ...given: unknown[]): void {
    for (const callback of this.known.get(name) ?? []) {
      callback(...given);
    }
  }

  /** How many listen. */
  listeners(): number {
    return [...this.known.values()].reduce((sum, known) => sum + known.size, 0);
  }
}

type Cleanup = () => void;
interface Disposable {
  dispose(): void;
}

/** What anywidget takes as a module: `talk` is made once for each widget, `show` for each view. */
export function widgetModule<Talk extends Disposable>(
  talk: (model: Model) => Talk,
  show: (talk: Talk, sections: Sections) => Disposable & { readonly el: HTMLElement },
) {
  const widgets = new WeakMap<object, Map<unknown, { talk: Talk; sections: Sections }>>();
  const widgetOf = (model: Model) => {
    const [page, name] = identity(model);
    const known = widgets.get(page) ?? new Map();
    const widget = known.get(name) ?? { talk: talk(model), sections: new Sections() };
    widgets.set(page, known.set(name, widget));
    return widget;
  };
  return {
    initialize({ model }: { model: Model }): Cleanup {
      const widget = widgetOf(model);
      const [page, name] = identity(model);
      return () => {
        widget.talk.dispose();
        widgets.get(page)?.delete(name);
      };
    },
    render({ model, el }: { model: Model; el: HTMLElement }): Cleanup {
      const widget = widgetOf(model);
      const view = show(widget.talk, widget.sections);
      el.append(view.el);
      return () => view.dispose();
    },
  };
}

/**
 * What a widget is known by: the page's widgets, and its name among them. anywidget hands a new
 * proxy to `initialize` and to each `render`; where it tells nothing else, the proxy is the widget.
 */
function identity(model: Model): [object, unknown] {
  const { widget_manager: page } = model;
  const name = model.get("name");
  const isNamed = typeof page === "object" && page !== null && typeof name === "string" && name;
  return isNamed ? [page, name] : [model, ""];
}

/** Whether the page has a kernel; null where it does not say. */
export function hasKernel({ widget_manager: manager }: Model): boolean | null {
  if (typeof manager !== "object" || manager === null || !("kernel" in manager)) {
    return null;
  }
  return manager.kernel !== null && manager.kernel !== undefined;
}
