"""Notebooks and what becomes of them: `cases/*.md`.

A case is a file of Markdown: a title, a sentence or two, and below them

- `## Cells`: the notebook. `report = pipe.export("my_loader.py")` is its last cell, unless a cell
  exports. In cells, ␍ is a carriage return, ␌ a form feed, ␉ a tab and ␤ a line separator.
- `## File NAME`: a file beside the notebook, any number of them.
- `## Module has`: blocks of the user's lines. A block must stand in the module, its lines one
  directly after another, at any indentation; `...` stands for any lines.
- `## Module lacks`: texts that must not stand in the module.
- `## Parameters`: parameters of `build_pipeline` with their defaults, all that turn a knob.
- `## Notes`: for each line, one note must have all its words; a word is in backquotes.
- `## Refused`: words that the refusal must have. Without this section the export must succeed.

Lines above the sections: `Environment: {...}`, variables whose values must be in no file;
`State: names`, attributes and captured names that stages change: they are not compared.
"(spawn)" in the title: the functions also run in a spawned process.

Each module is held against its notebook, too (`Notebook.examined`): it is imported from an empty
folder, and its pipeline has the same stages, knobs, arguments and items.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.export.notebooks import NEXT, Notebook, cells_of, contents, lacking

HERE = Path(__file__).parent / "cases"
EXPORT = 'report = pipe.export("my_loader.py")\n'
SECTION = re.compile(r"^## (.+)\n((?:```.*\n(?:.*\n)*?```$|(?!## ).*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(\w+): `(.*)`$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
MARKS = str.maketrans({"␍": "\r", "␌": "\f", "␉": "\t", "␤": "\N{LINE SEPARATOR}"})


@dataclass(frozen=True)
class Case:
    """A notebook, and what must hold for its module, or for the refusal."""

    name: str
    spawn: bool
    lines: dict[str, str]
    sections: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> "Case":
        """Read a case from its file."""
        text = path.read_text(encoding="utf-8")
        head, *_ = text.partition("\n## ")
        sections = dict(SECTION.findall(text.rstrip("\n") + "\n"))
        assert "Cells" in sections, path
        is_spawned = "(spawn)" in text.partition("\n")[0]
        return cls(path.stem, is_spawned, dict(LINE.findall(head)), sections)

    @property
    def cells(self) -> list[str]:
        """Its cells; the last of them exports."""
        (text,) = self.blocks("Cells")
        more = [] if ".export(" in text else [EXPORT]
        return [*cells_of(text.translate(MARKS)), *more]

    @property
    def env(self) -> dict[str, str]:
        """Its variables of the environment."""
        return ast.literal_eval(self.lines.get("Environment", "{}"))

    @property
    def state(self) -> list[str]:
        """Attributes that its stages change."""
        return [name for name in self.lines.get("State", "").split(", ") if name]

    @property
    def files(self) -> dict[str, str]:
        """The files beside the notebook."""
        found = [name for name in self.sections if name.startswith("File ")]
        return {name.removeprefix("File "): self.blocks(name)[0] for name in found}

    @property
    def parameters(self) -> dict[str, object] | None:
        """The parameters that must turn a knob; None where the case says nothing of them."""
        words = self.words("Parameters")
        pairs = [word.split("=") for word in words]
        return {name: ast.literal_eval(value) for name, value in pairs} if words else None

    @property
    def notes(self) -> list[list[str]]:
        """The words of each note that must be there."""
        found = [QUOTED.findall(line) for line in self.sections.get("Notes", "").split("\n")]
        return [words for words in found if words]

    def blocks(self, section: str) -> list[str]:
        """The blocks of code of a section."""
        return BLOCK.findall(self.sections.get(section, ""))

    def words(self, section: str) -> list[str]:
        """The words in backquotes of a section."""
        return QUOTED.findall(self.sections.get(section, ""))


CASES = [Case.read(path) for path in sorted(HERE.glob("*.md"))]
EXPORTED = [case for case in CASES if "Refused" not in case.sections]
REFUSED = [case for case in CASES if "Refused" in case.sections]
EVERYDAY = ("01_", "11_", "15_", "16_", "53_")  # the others take their time: they are slow


def parameters(cases: list[Case]):
    """Give each case with the modules that its notebook is to have early."""
    return [
        pytest.param(
            ("torch",) if "torch" in case.sections["Cells"] else (),
            case,
            id=case.name,
            marks=[
                *([pytest.mark.torch] if "torch" in case.sections["Cells"] else []),
                *([] if case.name.startswith(EVERYDAY) else [pytest.mark.slow]),
            ],
        )
        for case in cases
    ]


def prepared(notebook: Notebook, case: Case) -> str:
    """Put files and variables in place; return the cells."""
    notebook.env |= case.env
    for name, text in case.files.items():
        path = notebook.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return NEXT.join(cell + "\n" for cell in case.cells)


@pytest.mark.parametrize(("notebook", "case"), parameters(EXPORTED), indirect=["notebook"])
def test_exported(notebook: Notebook, case: Case):
    """The module has the user's lines, and its pipeline is the notebook's."""
    notebook.run(prepared(notebook, case))
    exported = notebook.examined(name="my_loader", spawn=case.spawn, state=case.state)
    missing = [block for block in case.blocks("Module has") if not exported.has(block)]
    assert missing == [], exported.text
    assert [text for text in case.words("Module lacks") if text in exported.text] == []
    assert case.parameters in (None, exported.tuned)
    assert [words for words in case.notes if not exported.noted(*words)] == [], exported.notes
    for value in case.env.values():
        assert value.encode() not in b"".join(contents(notebook.folder.parent).values())


@pytest.mark.parametrize(("notebook", "case"), parameters(REFUSED), indirect=["notebook"])
def test_refused(notebook: Notebook, case: Case):
    """The refusal has the words that the user needs, and nothing is written."""
    words = notebook.refused(prepared(notebook, case))
    assert lacking(words, *case.words("Refused")) == [], words
