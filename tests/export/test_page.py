"""The page on export: its blocks are cells of a notebook; its files and outputs are as it shows."""

import doctest
import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "export.md"
# A file that the page shows, or a cell and what it prints.
BLOCK = re.compile(
    r"^(?:<!-- the file (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<said>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def run_cell(tmp_path):
    """Give a function that runs a cell in a kernel, and returns what it printed."""
    manager, client = start_new_kernel(
        cwd=str(tmp_path),
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        extra_arguments=["--HistoryManager.enabled=False"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def run(code):
        said = []

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                said.append(content["text"])
            elif message["msg_type"] == "error":
                said.append(f"{content['ename']}: {content['evalue']}")

        client.execute_interactive(code, output_hook=hear, timeout=50)
        return "".join(said)

    try:
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def is_as_shown(shown, got):
    """Compare texts; `...` of the page stands for anything."""
    return doctest.OutputChecker().check_output(shown, got, doctest.ELLIPSIS)


def test_page(run_cell, tmp_path):
    """Every cell of the page prints what is shown, and every file holds what is shown."""
    wrong = []
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["file"]:
            shown, got = block["code"], (tmp_path / block["file"]).read_text(encoding="utf-8")
        else:
            shown, got = block["said"] or "", run_cell(block["code"])
        if not is_as_shown(shown, got):
            wrong.append((block["code"], shown, got))
    assert wrong == []
