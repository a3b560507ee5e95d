/** Run the cell that shows a panel again, as a person does: by the notebook's own button. */

const RUN = '[data-command="notebook:run-cell-and-select-next"]';

/** Return what runs the cell around an element; null where the page has no such cell or button. */
export function rerunCell(el: Element): (() => void) | null {
  const cell = el.closest(".jp-Cell");
  const prompt = cell?.querySelector(".jp-InputArea-prompt") ?? null;
  const run = cell?.closest(".jp-NotebookPanel")?.querySelector(RUN) ?? null;
  if (prompt === null || run === null) {
    return null;
  }
  return () => {
    press(prompt); // the cell is the active one now
    press(run);
  };
}

/** Press the left button of a mouse: JupyterLab acts on that, not on the click. */
function press(target: Element): void {
  for (const type of ["mousedown", "mouseup"]) {
    target.dispatchEvent(new MouseEvent(type, { bubbles: true, cancelable: true, button: 0 }));
  }
}
