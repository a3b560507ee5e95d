"""Texts that build pipelines, executed as modules of their own."""

import importlib.util
import sys


def executed(text, folder, monkeypatch, name="work"):
    """Execute a text as a file of its own; return its variables."""
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return vars(module)
