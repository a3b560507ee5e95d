"""The page of recipes: its sections, and how one is run on files that a test wrote."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[tuple[str, int]]]:
    """Give the blocks of every section that has any, each with its line on the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = {
        section[1]: [
            (block[1], text.count("\n", 0, section.start(2) + block.start(1)))
            for block in BLOCK.finditer(section[2])
        ]
        for section in SECTION.finditer(text)
    }
    return {title: blocks for title, blocks in found.items() if blocks}


def run_recipe(title: str, executor: str = "thread") -> dict:
    """Run a section's blocks in the current folder, its process stages in `executor`."""
    names = {"__name__": "recipe"}
    for code, line in sections()[title]:
        chosen = code.replace('executor="process"', f'executor="{executor}"')
        exec(compile("\n" * line + chosen, str(PAGE), "exec"), names)
    return names


# What is best in a process gives the same in threads.
both_executors = pytest.mark.parametrize("executor", ["thread", "process"])
