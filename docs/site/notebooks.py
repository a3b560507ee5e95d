"""Notebooks as they are stored: run from top to bottom, with outputs that a page can show.

`python docs/site/notebooks.py` runs all of them again, or those named, and stores them.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
import pictures
import plotly
from nbclient import NotebookClient
from nbformat import NotebookNode
from plotly.io import to_html

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
FOLDER = Path(__file__).parents[2] / "notebooks"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_FIGURE = "application/vnd.plotly.v1+json"
_LIVE = "<small>Widgets, which are live in the notebook itself.</small>"


# -- the site --------------------------------------------------------------------------------------
def read(text: str) -> NotebookNode:
    """Read a stored notebook, with its figures as HTML, and pictures that follow the theme."""
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = pictures.themed(cell.source)
        for output in cell.get("outputs", ()):
            figure = output.get("data", {}).get(_FIGURE)
            if figure is not None:
                script = f"../_static/{PLOTLY_JS.name}"
                page = to_html(figure, full_html=False, include_plotlyjs=script)
                output.data = NotebookNode({"text/html": page})
    return notebook


# -- what is stored --------------------------------------------------------------------------------
def run(path: Path) -> None:
    """Run a notebook in an empty folder, beside its modules, and store it with its outputs."""
    notebook = nbformat.read(path, 4)
    metadata = notebook.metadata.copy()
    with tempfile.TemporaryDirectory() as folder:
        for module in FOLDER.glob("*.py"):
            shutil.copy(module, folder)
        client = NotebookClient(
            notebook,
            timeout=300,
            store_widget_state=False,
            record_timing=False,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = stored(cell.outputs)
    notebook.metadata = metadata
    nbformat.write(notebook, path)


def stored(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs to keep: of a panel its picture, of other widgets a line of text."""
    kept = []
    for output in outputs:
        data = output.get("data", {})
        if data.get("text/plain") == "":
            continue  # the place of what a button would show
        if _WIDGET in data:
            del data[_WIDGET]
            data.setdefault("text/html", _LIVE)
            if data["text/html"] == _LIVE:
                data["text/plain"] = "Widgets"
        if _FIGURE in data:
            data["text/plain"] = "Figure"
        if kept and output.get("name", 0) == kept[-1].get("name"):
            kept[-1].text += output.text  # one stream, in pieces
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    for one in sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb"))):
        print(one)
        run(Path(one))
