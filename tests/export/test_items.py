"""Sources: what a pipeline reads is found again by the module, or is what the notebook has."""

import pytest

from tests.export.notebooks import Notebook

FILES = """
import glob
import os
import random
from pathlib import Path

import nbpipe
# ---- next cell
DATA = "letters"
for n in range(12):
    Path(f"{DATA}/{'ab'[n % 2]}").mkdir(parents=True, exist_ok=True)
    Path(f"{DATA}/{'ab'[n % 2]}/{n:02}.txt").write_text(str(n))
# ---- next cell
def name_of(path):
    return str(path)[-6:]
"""
EXPORT = """
# ---- next cell
report = nbpipe.source(files).map(name_of).export("loader.py", check_items=0)
"""


@pytest.mark.parametrize(
    ("files", "parameter", "source"),
    [
        (
            'sorted(glob.glob(os.path.join(DATA, "*", "*.txt")))[:5]',
            "root: str=DATA",
            "sorted(glob.glob(os.path.join(root, '*', '*.txt')))[:5]",
        ),
        (
            'sorted(glob.glob(os.path.join("letters", "*", "*.txt")))',
            "pattern: str=os.path.join('letters', '*', '*.txt')",
            "sorted(glob.glob(pattern))",
        ),
        (
            'sorted(Path("letters").rglob("*.txt"))',
            "root: Path=Path('letters')",
            "sorted(root.rglob('*.txt'))",
        ),
        (
            '[(p, p.parent.name) for c in "ab" for p in sorted((Path(DATA) / c).glob("*.txt"))]',
            "root: str=DATA",
            "[(p, p.parent.name) for c in 'ab' for p in sorted((Path(root) / c).glob('*.txt'))]",
        ),
        (
            '[p for c in sorted(Path(DATA).iterdir()) for p in sorted(c.glob("*.txt"))]',
            "root: str=DATA",
            "[p for c in sorted(Path(root).iterdir()) for p in sorted(c.glob('*.txt'))]",
        ),
        (
            '[p for c in os.listdir(DATA) for p in sorted(glob.glob(f"{DATA}/{c}/*"))]',
            "root: str=DATA",
            "[p for c in os.listdir(root) for p in sorted(glob.glob(f'{root}/{c}/*'))]",
        ),
        (
            'sorted(glob.iglob(f"{DATA}/a/*.txt"), key=os.path.getsize, reverse=True)',
            "root: str=DATA",
            "sorted(glob.iglob(f'{root}/a/*.txt'), key=os.path.getsize, reverse=True)",
        ),
    ],
)
def test_files_under_a_path(notebook: Notebook, files: str, parameter: str, source: str):
    """The folder, or the pattern, that files are looked for under is a parameter."""
    notebook.run(FILES)
    (notebook.elsewhere / "letters").symlink_to(notebook.folder / "letters")
    notebook.kernel.run(f"files = {files}\npipe = nbpipe.source(files).map(name_of)")
    notebook.kernel.run('report = pipe.export("loader.py")')
    exported = notebook.examined()
    assert exported.parameters == parameter
    assert exported.chain == f"nbpipe.source({source}).map(name_of)"


def test_files_under_several_paths(notebook: Notebook):
    """Where there are several folders, none of them is a parameter."""
    notebook.run(FILES)
    (notebook.elsewhere / "letters").symlink_to(notebook.folder / "letters")
    notebook.kernel.run(
        'A, B = Path(DATA, "a"), Path(DATA, "b")\n'
        'pipe = nbpipe.source(sorted([*A.glob("*.txt"), *B.glob("*.txt")])).map(name_of)\n'
        'report = pipe.export("loader.py")'
    )
    exported = notebook.examined()
    assert exported.parameters == ""
    assert "source(sorted([*A.glob('*.txt'), *B.glob('*.txt')]))" in exported.chain


@pytest.mark.parametrize(
    "change",
    ["files.pop()", "files.append(files[0])", "random.Random(4).shuffle(files)"],
)
def test_files_changed_in_place_are_refused(notebook: Notebook, change: str):
    """A list of files that is not what its text finds is refused, not listed again."""
    made = f'# ---- next cell\nfiles = sorted(Path(DATA).rglob("*.txt"))\n{change}\n'
    first, chain = notebook.refused(f"{FILES}{made}{EXPORT}").split("\n")
    assert "'files' is not what its text in In[4] finds by now: the list was changed" in first
    assert first.endswith("as files = sorted(...), and rebuild the pipeline")
    assert chain == "  used by: stage 'source'"
