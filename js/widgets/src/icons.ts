/** Icons, drawn on a grid of 12: a shape for each state, so that no state is shown by colour alone. */

import { svg } from "./dom";

const PATHS: Readonly<Record<string, string>> = {
  ready: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9zM6 3a3 3 0 1 1 0 6a3 3 0 1 1 0-6z",
  running: "M3 1.5v9l7.5-4.5z",
  paused: "M2.5 1.5h2.5v9h-2.5zM7 1.5h2.5v9h-2.5z",
  finished: "M1.5 6.5l1.4-1.4 2 2 4.2-4.6 1.4 1.3-5.5 6.1z",
  stopped: "M2 2h8v8h-8z",
  cancelled: "M6 1a5 5 0 1 0 0 10a5 5 0 1 0 0-10zM3 5.2h6v1.6h-6z",
  failed: "M6 .8l5.6 10.2h-11.2zM5.3 4.2v3.4h1.4v-3.4zM5.3 8.4v1.4h1.4v-1.4z",
  closed: "M3 5v-1.2a3 3 0 0 1 6 0v1.2h1v6h-8v-6zM4.4 5h3.2v-1.2a1.6 1.6 0 0 0-3.2 0z",
  undo: "M5 1.5v2.3h2a3.6 3.6 0 0 1 0 7.2h-3.5v-1.5h3.5a2.1 2.1 0 0 0 0-4.2h-2v2.3l-4-3z",
  export: "M5.2.8h1.6v3.9h2.4l-3.2 3.4-3.2-3.4h2.4zM1 8h1.6v1.7h6.8v-1.7h1.6v3.2h-10z",
  limits: "M1 1h10l-3.8 4.6v.8l3.8 4.6h-10l3.8-4.6v-.8z",
  advice:
    "M6 .8a5.2 5.2 0 1 0 0 10.4a5.2 5.2 0 1 0 0-10.4zM5.3 5.2h1.4v3.8h-1.4zM5.3 2.8h1.4v1.4h-1.4z",
};

export interface Icon {
  readonly el: SVGSVGElement;
  show(name: string): void;
}

export function icon(name: string): Icon {
  const path = svg("path", { "fill-rule": "evenodd" });
  const el = svg("svg", { class: "icon", viewBox: "0 0 12 12", "aria-hidden": "true" }, path);
  let shown = "";
  const show = (next: string): void => {
    if (next !== shown) {
      shown = next;
      path.setAttribute("d", PATHS[next] ?? "");
    }
  };
  show(name);
  return { el, show };
}
