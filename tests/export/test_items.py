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
ROOT = Path(DATA)
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
            'sorted(Path("letters").rglob("*.txt"))',
            "root: Path=Path('letters')",
            "sorted(root.rglob('*.txt'))",
        ),
        (
            '[p for c in sorted(ROOT.iterdir()) for p in sorted(c.glob("*.txt"))]',
            "root: Path=ROOT",
            "[p for c in sorted(root.iterdir()) for p in sorted(c.glob('*.txt'))]",
        ),
        ('sorted(glob.glob(f"{DATA}/*/*.txt"))[:5]', "", "files"),
    ],
)
def test_files_under_a_path(notebook: Notebook, files: str, parameter: str, source: str):
    """The path whose method looks for files is a parameter; a text is not."""
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


def test_a_folder_that_is_called_root(notebook: Notebook):
    """It is the default of the parameter of that name, if functions do not read it, too."""
    notebook.run(FILES)
    (notebook.elsewhere / "letters").symlink_to(notebook.folder / "letters")
    notebook.kernel.run(
        "root = ROOT\n"
        'pipe = nbpipe.source(sorted(root.rglob("*.txt"))).map(name_of)\n'
        'report = pipe.export("loader.py")'
    )
    assert notebook.examined().parameters == "root: Path=root"
    notebook.kernel.run(
        "def name_of(path):\n    return str(path.relative_to(root))\n"
        "pipe = nbpipe.source(sorted(root.rglob('*.txt'))).map(name_of)\n"
        'report = pipe.export("loader.py")'
    )
    assert notebook.examined().parameters == ""


def test_sources_of_one_folder_share_its_root(notebook: Notebook):
    """One parameter is the folder of both; that of another folder bears the name of its source."""
    notebook.run(FILES)
    (notebook.elsewhere / "letters").symlink_to(notebook.folder / "letters")
    notebook.kernel.run(
        'A, B = Path(DATA, "a"), Path(DATA, "b")\n'
        'files = nbpipe.source(sorted(A.glob("*.txt")))\n'
        'turned = nbpipe.source(sorted(A.rglob("*.txt"))[::-1], name="turned")\n'
        'others = nbpipe.source(sorted(B.glob("*.txt")), name="others")\n'
        'pipe = nbpipe.zip(files, turned, others)\nreport = pipe.export("loader.py")'
    )
    exported = notebook.examined()
    assert exported.parameters == "root: Path=A, others_root: Path=B"
    assert "    turned = nbpipe.source(sorted(root.rglob" in exported.text


def test_the_folder_in_a_formatted_text_is_no_parameter(notebook: Notebook):
    """A text that is more than the folder stays as it is."""
    notebook.run(FILES)
    (notebook.elsewhere / "letters").symlink_to(notebook.folder / "letters")
    notebook.kernel.run(
        "class Files:\n    def __init__(self, pattern):\n        self.names = glob.glob(pattern)\n"
        '# ---- next cell\nKIND = "a"\nfiles = Files(f"letters/{KIND}/*.txt")\n'
        "pipe = nbpipe.source(range(len(files.names))).map(files.names.__getitem__)\n"
        'report = pipe.export("loader.py")'
    )
    assert notebook.examined().parameters == ""


@pytest.mark.parametrize(
    "change", ["files.pop()", "files.append(files[0])", "random.Random(4).shuffle(files)"]
)
def test_files_changed_in_place_are_refused(notebook: Notebook, change: str):
    """A list of files that is not what its text finds is refused, not listed again."""
    made = f'# ---- next cell\nfiles = sorted(Path(DATA).rglob("*.txt"))\n{change}\n'
    first, chain = notebook.refused(f"{FILES}{made}{EXPORT}").split("\n")
    assert "'files' is not what its text in In[4] finds by now: the list was changed" in first
    assert first.endswith("as files = sorted(...), and rebuild the pipeline")
    assert chain == "  used by: stage 'source'"
