"""Twenty notebooks and what they export to, or why they are refused: `cases/*.md`.

`src` and `go` are In[1] and In[2] where a notebook does not have its own `src`. A case marked
"spawn" also runs its stages in a spawned process.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.export.notebooks import NEXT, Notebook, cells_of, contents

SRC = "def src(): return range(6)"
GO = """\
def go(source, stages):
    import nbpipe

    pipe = nbpipe.source(source)
    for stage, options in stages:
        kind = options.get("kind", "map")
        options = {name: option for name, option in options.items() if name != "kind"}
        pipe = getattr(pipe, kind)(stage, **options)
    go.pipe = pipe
    go.report = pipe.export("my_loader.py")
"""
BLOCK = re.compile(r"^```(?:python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENV = re.compile(r"^Files/env: `(.*)`$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A notebook, and the module or the refusal that it gives."""

    name: str
    cells: str
    module: str
    refusal: str
    env: dict[str, str]
    spawn: bool

    @classmethod
    def read(cls, path: Path) -> "Case":
        """Read a case from its file."""
        text = path.read_text(encoding="utf-8")
        cells, expected = BLOCK.findall(text)
        env = ENV.search(text)
        is_refused = "\nRefused with:\n" in text
        return cls(
            name=path.stem,
            cells=cells,
            module="" if is_refused else expected,
            refusal=expected.rstrip() if is_refused else "",
            env=ast.literal_eval(env[1]) if env else {},
            spawn="(spawn)" in text.partition("\n")[0],
        )

    @property
    def notebook(self) -> str:
        """Its cells, with those that it takes for granted."""
        source = [] if "def src(" in self.cells else [SRC]
        return NEXT.join(one + "\n" for one in [*source, GO, *cells_of(self.cells)])


CASES = [Case.read(path) for path in sorted((Path(__file__).parent / "cases").glob("*.md"))]
EXPORTED = [case for case in CASES if case.module]
REFUSED = [case for case in CASES if case.refusal]


def parameters(cases):
    """Give each case with the modules that its notebook is to have early."""
    return [
        pytest.param(
            ("torch",) if "torch" in case.cells else (),
            case,
            id=case.name,
            marks=[pytest.mark.torch] if "torch" in case.cells else [],
        )
        for case in cases
    ]


def shown(text):
    """Return what the cases show of a module: neither its docstring, nor `src`, nor `main`."""
    text = text.split('"""\n\n', 1)[1].split("\n\n\ndef main()")[0] + "\n"
    return re.sub(r"^def src\(\):.*?\n\n\n", "", text, flags=re.MULTILINE | re.DOTALL)


def test_there_are_twenty():
    """No case was lost on the way."""
    assert len(CASES) == 20


@pytest.mark.parametrize(("notebook", "case"), parameters(EXPORTED), indirect=["notebook"])
def test_exported(notebook: Notebook, case: Case):
    """The module is the one written down, gives the notebook's items, and passes the lint."""
    notebook.env |= case.env
    notebook.run(case.notebook)
    exported = notebook.examined(pipe="go.pipe", name="my_loader", spawn=case.spawn)
    assert shown(exported.text) == case.module
    if case.spawn:
        assert exported.found["spawned"] == exported.known["items"]
    for value in case.env.values():
        assert value.encode() not in b"".join(contents(notebook.folder.parent).values())


@pytest.mark.parametrize(("notebook", "case"), parameters(REFUSED), indirect=["notebook"])
def test_refused(notebook: Notebook, case: Case):
    """The refusal is word for word the one written down, and nothing is written."""
    assert notebook.refused(case.notebook) == case.refusal
