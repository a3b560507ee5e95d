/** The extension of JupyterLab, and of Notebook 7. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin,
} from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { Commands, SHOW } from "./commands";
import { Kernels } from "./kernels";
import { RunningRuns } from "./running";
import { SIDEBAR, Sidebar } from "./sidebar";
import { Status } from "./status";

const ID = "jupyter-nbpipe:plugin";

/** Follow the settings: each acts as soon as it is written. */
async function follow(
  registry: ISettingRegistry,
  app: JupyterFrontEnd,
  kernels: Kernels,
): Promise<void> {
  const settings = await registry.load(ID);
  let opened = false;
  const read = () => {
    kernels.refresh = settings.get("refresh").composite as number;
    const opens = settings.get("openAtStart").composite as boolean;
    if (opens && !opened) {
      void app.restored.then(() => app.shell.activateById(SIDEBAR));
    }
    opened = opens;
  };
  settings.changed.connect(read);
  read();
}

/** Join JupyterLab's own list of what runs, and its status bar, where there are any. */
async function join(app: JupyterFrontEnd, kernels: Kernels): Promise<void> {
  // Voila lacks both packages, and cannot load what imports them from the start.
  const [{ IRunningSessionManagers }, { IStatusBar }] = await Promise.all([
    import("@jupyterlab/running"),
    import("@jupyterlab/statusbar"),
  ]);
  const managers = await app.resolveOptionalService(IRunningSessionManagers);
  const bar = await app.resolveOptionalService(IStatusBar);
  if (managers !== null) {
    new RunningRuns(app, kernels, managers);
  }
  if (bar !== null) {
    new Status(kernels, () => void app.commands.execute(SHOW)).register(bar);
  }
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: "Data-loading pipelines of nbpipe: what runs, live, with its controls.",
  autoStart: true,
  // Notebook 7 has not all of them, and Voila, which loads every extension, has none.
  optional: [INotebookTracker, ICommandPalette, ILayoutRestorer, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    registry: ISettingRegistry | null,
  ) => {
    if (tracker === null) {
      return;
    }
    const kernels = new Kernels(tracker);
    const sidebar = new Sidebar(kernels);
    const commands = new Commands(app, tracker, kernels, sidebar);
    app.shell.add(sidebar, "right", { rank: 600 });
    restorer?.add(sidebar, SIDEBAR);
    if (palette !== null) {
      commands.list(palette);
    }
    if (registry !== null) {
      follow(registry, app, kernels).catch((error) => console.warn("[nbpipe] settings:", error));
    }
    await join(app, kernels);
  },
};

export default plugin;
