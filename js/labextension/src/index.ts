/** The extension of JupyterLab, and of Notebook 7. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin,
} from "@jupyterlab/application";
import { INotebookTracker } from "@jupyterlab/notebook";
import { Kernels } from "./kernels";
import { SIDEBAR, Sidebar } from "./sidebar";

const plugin: JupyterFrontEndPlugin<void> = {
  id: "jupyter-nbpipe:plugin",
  description: "Data-loading pipelines of nbpipe: what runs, live, with its controls.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ILayoutRestorer],
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker, restorer: ILayoutRestorer | null) => {
    const sidebar = new Sidebar(new Kernels(tracker));
    app.shell.add(sidebar, "right", { rank: 600 });
    restorer?.add(sidebar, SIDEBAR);
  },
};

export default plugin;
