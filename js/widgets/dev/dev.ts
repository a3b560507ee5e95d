/** The panel with a simulated kernel; see serve.mjs. Parameters: stages, state, chain, starting,
 * rest, past, more, theme, link, views. */

import type { Model } from "../src/anywidget";
import panel from "../src/index";
import { SimulatedRun } from "./simulate";

const EXPORT_MS = 2500;

const given = new URLSearchParams(location.search);
const theme = given.get("theme") ?? "";
if (theme !== "") {
  document.body.dataset.jpThemeLight = String(theme === "light");
}

const run = new SimulatedRun(
  Number(given.get("stages") ?? 6),
  given.get("state") ?? "running",
  given.get("chain") ?? "threads",
  Number(given.get("starting") ?? 0),
  Number(given.get("rest") ?? 0),
  given.has("more"),
  Number(given.get("past") ?? 180),
);
const link = given.get("link") ?? "live";
const kernel = link === "live" || link === "gone";
const heard = new Map<string, Set<(...given: unknown[]) => void>>();
let views = 0;

function receive(content: unknown): void {
  for (const callback of heard.get("msg:custom") ?? []) {
    callback(JSON.parse(JSON.stringify(content)), []);
  }
}

const model: Model = {
  get: (name) => ({ snapshot: JSON.stringify(run.snapshot(true)), variable: "run" })[name],
  on: (name, callback) => heard.set(name, (heard.get(name) ?? new Set()).add(callback)),
  off: (name, callback) => heard.get(name)?.delete(callback),
  widget_manager: { kernel: link === "none" ? null : {} },
  send: (content) => {
    if (kernel) {
      setTimeout(() => answer(content as Record<string, unknown>), 15);
    }
  },
};

function answer(message: Record<string, unknown>): void {
  if (message.op === "view") {
    views += message.open === true ? 1 : -1;
    if (message.open === true) {
      receive({ type: "hello", snapshot: run.snapshot(true), history: run.history() });
    }
  } else if (message.op === "export") {
    receive({ type: "ack", id: message.id, ok: true, value: null });
    setTimeout(() => receive(run.export(message)), EXPORT_MS);
  } else if (message.op !== "alive") {
    receive({ type: "ack", id: message.id, ...run.act(message) });
  }
}

let told = run.told;
setInterval(() => {
  if (kernel && views > 0 && run.step(0.25)) {
    receive({ type: "tick", snapshot: run.snapshot(told !== run.told) });
    told = run.told;
  }
}, 250);

panel.initialize({ model });
if (link === "gone") {
  setTimeout(() => {
    for (const callback of heard.get("comm_live_update") ?? []) {
      callback();
    }
  }, 700);
}
const main = document.querySelector("main");
for (let view = 0; view < Number(given.get("views") ?? 1); view += 1) {
  const el = document.createElement("div");
  main?.append(el);
  panel.render({ model, el });
}
