"""Hostile use: secrets by their place in a call, orders that hang on hashes, interrupts."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from nbpipe.errors import ArgumentError, ExportError
from nbpipe.export import fresh
from nbpipe.export.difference import fingerprint_of, shows_order_of_set
from nbpipe.export.fresh import Environment
from nbpipe.export.held import secret_in
from nbpipe.export.module import Piece, Spelling
from nbpipe.export.proof import Choice, tried
from nbpipe.export.secrets import secret_in_text
from nbpipe.export.store import module_path

WORD = "horse9battery"
TOLD = {
    "function": f"def login(user, password): pass\nlogin('me', '{WORD}')",
    "partial": f"def login(password, x): pass\nlogin = partial(login, '{WORD}')",
    "class": f"class Hub:\n    def __init__(self, api_key): pass\nhub = Hub('{WORD}')",
    "dataclass": f"class Hub:\n    retries: int\n    api_key: str\nhub = Hub(3, '{WORD}')",
    "method": f"class Hub:\n    def login(self, password): pass\nhub.login('{WORD}')",
    "static": f"class A:\n    @staticmethod\n    def f(password): pass\nA.f('{WORD}')",
    "pair": f"PAIRS = [('password', '{WORD}')]",
    "sentence": f"x = 1  # my password is {WORD}",
    "colon": f"# password: {WORD}\nx = 1",
    "pin": "def unlock(pin): pass\nunlock(4711)",
}
TAME = {
    "vocabulary": 'VOCABULARY = {"password": 18042, "secret": 1700}',
    "template": 'URL = "https://%s:%s@example.org" % (USER, WORD)',
    "example": 'URL = "postgres://me:password@example.org/data"',
    "shared file": 'FILE_ID = "1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvWx"',
    "advice": "# password: read it from the environment\nx = 1",
    "place": 'x = 1  # secret: os.environ["A1B2C3"]',
    "small number": "pin = 3",
    "argument": "def embed(x, pad_token): pass\nembed('a', '<pad>')",
}


@pytest.mark.parametrize("kind", TOLD)
def test_secret_by_its_place(kind: str):
    """A plain word is a secret where the code around it says so."""
    assert secret_in_text(TOLD[kind])


@pytest.mark.parametrize("kind", TAME)
def test_no_secret(kind: str):
    """What only sounds like a secret is none."""
    assert not secret_in_text(TAME[kind])


@pytest.mark.parametrize("word", ["a", "aB3-", "word ", "http://", "key is "])
def test_long_text(word: str):
    """A text of any length is looked at once, not once for each of its letters."""
    text = word * 20_000
    assert not secret_in_text(f"x = {text!r}  # {text}")


def login(password, x):
    """Take a password."""
    return password, x


def test_secret_in_a_partial():
    """An argument of a partial is known by the name that its function gives it."""
    assert secret_in("read", partial(login, WORD)) == "read(password)"


def test_secret_in_a_pair():
    """The second of a pair is known by the first; numbers of words are none."""
    found = [secret_in("held", value) for value in ([("password", WORD)], {"pin": 7000, "a": 1})]
    assert found == ["held[0][1]", None]


def constant(name: str, *texts: str, **expected) -> Piece:
    """Make a piece from its spellings."""
    fingerprints = {key: fingerprint_of(value) for key, value in expected.items()}
    return Piece((name,), tuple(map(Spelling, texts)), fingerprints, words=f"variable {name!r}")


def trial(*pieces: Piece):
    """Try pieces as those of `my_loader`."""
    return tried("", pieces, Environment.here(), name="my_loader", future=False)


def test_secret_reaches_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A secret that two pieces give away together is refused before a file holds it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    pieces = (constant("login", "def login(password): pass"), constant("x", f"x = login('{WORD}')"))
    with pytest.raises(ExportError, match="variable 'x' holds what looks like a secret") as caught:
        trial(*pieces)
    assert WORD not in str(caught.value)


@pytest.mark.parametrize("labels", [["a", "b"], ["b", "a"]])
def test_order_of_a_set(labels: list[str], monkeypatch: pytest.MonkeyPatch):
    """Text whose order is another in each process is never taken, even if one agrees."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = "LABELS = list({'a', 'b'})"
    assert trial(constant("LABELS", text, f"LABELS = {labels}", LABELS=labels)) == [Choice(1)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("X = list(set(labels))", True),
        ("X = [name for name in {'a', 'b'}]", True),
        ("X = [*set(labels), 3]", True),
        ("X = dict.fromkeys(set(a) | set(b))", True),
        ("X = sorted(set(labels))", False),
        ("X = {one: len(set(many)) for one, many in groups}", False),
        ("X = Config(suffixes={'.png', '.jpg'})", False),
        ("X = sorted([one for one in set(labels)])", False),
    ],
)
def test_order_that_text_shows(text: str, *, shown: bool):
    """The order of a set shows where something goes through it."""
    assert shows_order_of_set(text) == shown


def test_set_as_written(monkeypatch: pytest.MonkeyPatch):
    """A set is equal to itself in any order."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert trial(constant("X", "X = {'b', 'a', 'c'}", X={"a", "b", "c"})) == [Choice(0)]


class Interrupted(tempfile.TemporaryDirectory):
    """A folder whose removal is interrupted."""

    def cleanup(self):
        """Stop in the middle."""
        self._finalizer.detach()
        raise KeyboardInterrupt


def test_interrupt_in_the_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An interrupt while a temporary folder is removed leaves nothing of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fresh, "TemporaryDirectory", Interrupted)
    with pytest.raises(KeyboardInterrupt), fresh.temporary_folder() as folder:
        Path(folder, "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where no temporary folder can be made, the error says what to set."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ExportError, match="set TMPDIR to a folder that can be written"):
        trial(constant("x", "x = 1"))
    assert list(tmp_path.iterdir()) == []


def test_deleted_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative path where the working folder was deleted is refused with the way out."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ArgumentError, match=r"the working folder was deleted; .* os\.chdir"):
        module_path("loader.py")
    assert module_path(tmp_path / "loader.py") == tmp_path / "loader.py"
