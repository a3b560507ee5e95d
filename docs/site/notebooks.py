"""Notebooks as the site shows them: run when it is made, and nothing fetched when they are read."""

import os
import re
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import nbformat
import plotly
from nbclient import NotebookClient
from nbformat import NotebookNode
from plotly.io import to_html

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_FOLDER = Path(__file__).parents[2] / "notebooks"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_FIGURE = "application/vnd.plotly.v1+json"
_TOLD = re.compile(r"^It prints:\n\n((?:    .*\n)+)")
_LIVE = "<small>Widgets, which are live in the notebook itself.</small>"


def read(text: str) -> NotebookNode:
    """Read a notebook, run it, and leave of its outputs what a page can show."""
    notebook = nbformat.reads(text, as_version=4)
    if os.environ.get("NBPIPE_DOCS_NOTEBOOKS") != "off":
        client = NotebookClient(
            notebook,
            timeout=300,
            store_widget_state=False,
            resources={"metadata": {"path": str(_FOLDER)}},
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
        client.execute()
        check_told(notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _shown(cell.outputs)
    return notebook


def check_told(cells: list[NotebookNode]) -> None:
    """Compare what a text says that the cell above it prints with what it has printed.

    Raises:
        ValueError: it is something else; `...` in the text stands for anything in a line.
    """
    for above, cell in pairwise(cells):
        found = _TOLD.match(f"{cell.source}\n")
        if found is None:
            continue
        told = dedent(found[1])
        printed = "".join(one.text for one in above.outputs if one.output_type == "stream")
        if not re.fullmatch(re.escape(told).replace(r"\.\.\.", ".*"), printed):
            raise ValueError(f"a notebook tells that a cell prints\n{told}but it prints\n{printed}")


def _shown(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs of a cell: a picture in place of each widget, figures as HTML."""
    pictures = any("text/html" in one.get("data", {}) for one in outputs)
    kept = []
    for output in outputs:
        data = output.get("data", {})
        if data.get("text/plain") == "":
            continue  # the place of what a button would show
        if _FIGURE in data:
            script = f"../_static/{PLOTLY_JS.name}"
            page = to_html(data[_FIGURE], full_html=False, include_plotlyjs=script)
            output.data = NotebookNode({"text/html": page})
        elif _WIDGET in data:
            output.data = NotebookNode({"text/html": _LIVE})
            if pictures:
                continue
        kept.append(output)
    return kept
