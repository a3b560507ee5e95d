"""Leaks: a secret is in no byte that leaves an export, whatever way it came in."""

import ast
import contextlib
import getpass
import io
import sys
import traceback
from pathlib import Path

import pytest

from nbpipe.errors import ExportError, ModuleEditedError
from nbpipe.export.exporting import redacting
from nbpipe.export.fingerprint import difference, fingerprint_of
from nbpipe.export.reachable import secret_in
from nbpipe.export.record import Record
from nbpipe.export.secrets import redacted_source, secret_in_text
from nbpipe.export.statements import Cell
from nbpipe.export.store import stored
from tests.export.leaks import (
    IMPORTS,
    ORDINARY,
    REFUSED,
    TAME,
    Way,
    filled,
    script,
    secrets_of,
    tame_script,
)


def live(text: str, path: Path):
    """Run a script in this process; return its pipeline."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    names = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    return names["pipe"]


def seen_of(error: BaseException) -> str:
    """Give all that a traceback, a log or a notebook may show of an error."""
    every = [error, error.__cause__, error.__context__]
    words = [repr((one, getattr(one, "__notes__", ()), vars(one))) for one in every if one]
    trace = traceback.TracebackException.from_exception(error, lookup_lines=False)
    shown = [str(frame) for frame in trace.stack] + list(trace.format_exception_only())
    return "\n".join([*words, *shown, "".join(traceback.format_exception_only(error))])


# What holds no secret in its text: it is refused, or copied with the look-up in it.
ELSEWHERE = (
    "value of the environment",
    "plainly named variable",
    "computed from the environment",
    "partial of the environment",
    "typed in",
)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Give the folder that is exported to and that of caches; temporary files go there too."""
    for name in ("out", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("NBPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path / "out", tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, places, tmp_path, monkeypatch, caplog):
    """What holds a secret is refused for that, and nothing that leaves holds it.

    A value made of a look-up may be copied with it.
    """
    number = list(REFUSED).index(kind)
    text, held = filled(script(REFUSED[kind]), number)
    word = secrets_of(number)["$WORD"]
    monkeypatch.setenv("LEAK_PASSWORD", f"env-{word}")
    monkeypatch.setenv("LEAK_PLAIN", f"env-{word}")
    monkeypatch.setattr(getpass, "getpass", lambda *_: f"env-{word}")
    pipe = live(text, tmp_path / "home" / "way.py")
    refusal, report = None, None
    with (
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(stdout),
    ):
        try:
            report = pipe.export("loader.py", assets="npz")
        except ExportError as error:
            refusal = error
    out = [path for place in places for path in place.rglob("*") if path.is_file()]
    said = seen_of(refusal) if refusal else f"{report!r} {report}"
    every = f"{said}\n{stdout.getvalue()}\n{caplog.text}".encode()
    every += b"".join(path.read_bytes() for path in out)
    assert [one for one in (*held, word) if one.encode() in every] == [], said
    assert kind in ELSEWHERE or (out == [] and "secret" in str(refusal)), said


@pytest.mark.slow
def test_secrets_of_a_module_of_the_users_own(places, tmp_path, monkeypatch):
    """What its functions give is asked of them again; the secret stays in its file."""
    home = tmp_path / "home"
    home.mkdir()
    text = """
API_KEY = "hunter900kx7"

def address():
    return f"example.org {API_KEY}"
"""
    (home / "settings_of_mine.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(home)
    made = "import settings_of_mine\nHELD = settings_of_mine.address()"
    pipe = live(script(Way(made)), home / "way.py")
    report = pipe.export("loader.py", check_items=0)
    del sys.modules["settings_of_mine"]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    said = [f"{report!r} {report}", *(path.read_text(encoding="utf-8") for path in files)]
    assert made.splitlines()[1] in Path("loader.py").read_text(encoding="utf-8")
    assert [text for text in said if "hunter900" in text] == []


@pytest.mark.slow
def test_secret_that_a_module_of_the_users_own_gives(places, tmp_path, monkeypatch):
    """A text that holds a secret of such a module is refused, wherever it stands."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings_of_ours.py").write_text('API_KEY = "hunter901kx7"\n', encoding="utf-8")
    monkeypatch.syspath_prepend(home)
    made = 'import settings_of_ours\nHELD = ["hunter901kx7", settings_of_ours]'
    pipe = live(script(Way(made)), home / "way.py")
    with pytest.raises(ExportError, match="secret") as refusal:
        pipe.export("loader.py", check_items=0)
    del sys.modules["settings_of_ours"]
    assert "hunter901" not in seen_of(refusal.value)


@pytest.mark.parametrize("line", TAME)
def test_no_secret(line: str):
    """What is written every day is no secret: neither in source nor as a value."""
    names: dict[str, object] = {}
    exec(IMPORTS + line, names)
    name = line.partition(" = ")[0]
    assert (secret_in_text(line), secret_in(name, names[name])) == (False, None)


def test_no_secret_in_code():
    """Ordinary functions, docstrings and comments that speak of tokens and passwords hold none."""
    assert (secret_in_text(ORDINARY), redacted_source(ORDINARY)) == (False, ORDINARY)


@pytest.mark.slow
def test_ordinary_module(places, tmp_path):
    """All that is no secret is exported in one module."""
    pipe = live(tame_script(), tmp_path / "home" / "way.py")
    pipe.export("loader.py", check_items=0)
    text = Path("loader.py").read_text(encoding="utf-8")
    assert [line for line in TAME if line not in text] == []


TOLD = [
    "import os\nos.environ['API_KEY'] = '$WORD'\n",
    "auth = ('bob', '$WORD')\n",
    "x = connect(password='$WORD')  # $HF\n",
    "URL = 'https://example.org/get?api_key=$WORD'\n",
    "PASSWORD = ''.join(['$WORD'])\n",
]


@pytest.mark.parametrize("text", TOLD)
def test_edited_module(text: str, places):
    """A file that export did not write is shown without its secrets."""
    text, held = filled(text, TOLD.index(text))
    Path("loader.py").write_text(text, encoding="utf-8")
    with pytest.raises(ModuleEditedError) as refusal:
        stored("loader.py", "import nbpipe\n", {}, overwrite=False)
    assert "***" in str(refusal.value)
    assert [secret for secret in held if secret in seen_of(refusal.value)] == []


def fail(text: str) -> None:
    """Raise as a library does that tells what it was given."""
    cause = ConnectionError(text)
    cause.add_note(text)
    error = ExportError(f"it failed: {text}")
    error.add_note(f"while it logged in: {text}")
    raise error from cause


SAID = [
    "login of bob with password=$WORD failed",
    "401 for https://example.org/get?api_key=$WORD&size=3",
    "invalid token '$HF'",
    "could not connect to postgres://bob:$WORD@example.org/data",
    "{'Authorization': 'Bearer $WORD'}",
    '{"user": "bob", "password": "$WORD"}',
    "known: $WORD",
    "in base64: $BASIC",
    "in another word: x$WORDx",
]


@pytest.mark.parametrize("said", SAID)
def test_error(said: str):
    """An error that leaves the gate says no secret, nor do its notes and its causes."""
    number = 700 + SAID.index(said)
    text, held = filled(said, number)
    word = secrets_of(number)["$WORD"]
    cells = [Cell("In[1]", "import getpass\ntyped = getpass.getpass()\n")]
    with pytest.raises(ExportError) as refusal, redacting(Record({"typed": word}, cells)):
        fail(text)
    assert "***" in str(refusal.value)
    assert [one for one in (*held, word) if one in seen_of(refusal.value)] == []


def test_error_without_secrets():
    """An error that says nothing secret keeps its words, its notes and its cause."""
    with pytest.raises(ExportError) as refusal, redacting(Record({}, ())):
        fail("no file 'data/train/img_0001.png'")
    error = refusal.value
    assert str(error) == "it failed: no file 'data/train/img_0001.png'"
    assert (error.__notes__, type(error.__cause__)) == (
        ["while it logged in: no file 'data/train/img_0001.png'"],
        ConnectionError,
    )


RAISES = """
import os
from pathlib import Path
import nbpipe

class Login:
    def __init__(self):
        if not Path("open").exists():
            error = ConnectionError({said!r}.format(os.environ["LEAK_PASSWORD"]))
            error.add_note({said!r}.format(os.environ["LEAK_PASSWORD"]))
            raise error

    def __call__(self, x):
        return x

Path("open").touch()
login = Login()
Path("open").unlink()
pipe = nbpipe.source(range(2)).map(login)
"""
RAISED = [
    "login of bob with password={} failed",
    "401 for https://example.org/get?api_key={}&size=3",
    "in another word: x{}x",
]


@pytest.mark.slow
@pytest.mark.parametrize("said", RAISED)
def test_error_of_a_statement(said: str, places, tmp_path, monkeypatch):
    """An error that a statement raises in the fresh process is shown without secrets."""
    word = secrets_of(700 + RAISED.index(said))["$WORD"]
    monkeypatch.setenv("LEAK_PASSWORD", word)
    pipe = live(RAISES.format(said=said), tmp_path / "home" / "way.py")
    with pytest.raises(ExportError) as refusal:
        pipe.export("loader.py")
    assert "login" in str(refusal.value)
    assert word not in seen_of(refusal.value)


WRITTEN = {
    "text": ("$WORD", "other"),
    "two texts": ("$WORD", "$WORD"[::-1] + "$DENSE"),
    "bytes": (b"$WORD", b""),
    "long text": ("$WORD " * 90, "$WORD"),
    "inside": ({"a": ["$WORD"]}, {"a": ["$HF"]}),
    "key": ({"$WORD": 1}, {"$WORD": 2}),
    "missing": ({"a": "$WORD"}, {}),
    "in a set": ({"$WORD"}, {"b"}),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_difference(kind: str):
    """Of a text that is neither words nor numbers, a difference tells no more than its length."""
    pairs = [filled(repr(value), 800 + at) for at, value in enumerate(WRITTEN[kind])]
    one, other = (fingerprint_of(ast.literal_eval(text)) for text, _ in pairs)
    words = difference(one, other, "there")
    assert words is not None
    assert [secret for _, held in pairs for secret in held if secret in words] == []


def test_difference_of_names():
    """Names of files are shown as they are."""
    names = ["data/train/img_0001.png"], ["data/val/n01440764.JPEG"]
    words = difference(*map(fingerprint_of, names), "there")
    assert words == (
        "[0]: 'data/train/img_0001.png' in the notebook, 'data/val/n01440764.JPEG' there"
    )
