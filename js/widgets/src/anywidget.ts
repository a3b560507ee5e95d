/** What anywidget gives to a module: the part of its model that is used here. */

export interface Model {
  get(name: string): unknown;
  on(name: string, callback: (...given: unknown[]) => void): void;
  off(name: string, callback: (...given: unknown[]) => void): void;
  send(content: unknown): void;
  /** What holds the page's widgets; JupyterLab's knows the kernel. */
  readonly widget_manager?: unknown;
}

export type Cleanup = () => void;

/**
 * One object for each widget: anywidget hands a new proxy to `initialize` and to each `render`,
 * while the widget's layout is one object of its own.
 */
export function identity(model: Model): object {
  const layout = model.get("layout");
  return typeof layout === "object" && layout !== null ? layout : model;
}

/** Whether the page has a kernel; null where it does not say. */
export function hasKernel({ widget_manager: manager }: Model): boolean | null {
  if (typeof manager !== "object" || manager === null || !("kernel" in manager)) {
    return null;
  }
  return manager.kernel !== null && manager.kernel !== undefined;
}
