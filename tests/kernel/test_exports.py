"""An export that takes longer shows in the notebook what it does."""

import pytest

from tests.kernel.client import parent

pytestmark = pytest.mark.slow


def test_an_export_shows_its_steps_and_clears_them(notebook):
    """One output says which step is under way, and is empty in the end."""
    notebook.run("import nbpipe, nbpipe.export.exporting\nnbpipe.export.exporting.SILENT_S = 0")
    notebook.run("pipe = nbpipe.source(range(4)).map(str)")
    cell, _ = notebook.end("done = pipe.export('steps_loader.py')")
    shown = [
        one
        for one in notebook.heard
        if one["msg_type"] in ("display_data", "update_display_data") and parent(one) == cell
    ]
    assert len({one["content"]["transient"]["display_id"] for one in shown}) == 1
    texts = [one["content"]["data"]["text/plain"] for one in shown]
    assert "export: importing the module in a fresh process..." in texts
    assert texts[-1] == ""
    notebook.run("nbpipe.export.exporting.SILENT_S = 3.0")
