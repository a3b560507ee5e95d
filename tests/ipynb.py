"""Notebooks as files, written without nbformat: it takes more than a second to import."""

import json
from pathlib import Path

CODE = {"cell_type": "code", "execution_count": None, "outputs": []}
Cell = str | tuple[str, list[str]]  # its text, or its text and its tags


def write_notebook(
    path: Path, *cells: Cell, kernel: str = "python3", language: str = "python"
) -> Path:
    """Write a notebook of code cells; return its path."""
    pairs = [(cell, []) if isinstance(cell, str) else cell for cell in cells]
    notebook = {
        "cells": [
            {**CODE, "id": f"cell-{number}", "metadata": {"tags": tags}, "source": text}
            for number, (text, tags) in enumerate(pairs)
        ],
        "metadata": {
            "kernelspec": {"name": kernel, "display_name": "Python 3", "language": language}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path
