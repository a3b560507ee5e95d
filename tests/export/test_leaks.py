"""Leaks: a secret is in no byte that leaves an export, whatever way it came in."""

import contextlib
import getpass
import io
import traceback
from pathlib import Path

import pytest

from nbpipe.errors import ExportError
from nbpipe.export.secrets import masked, secret_in, secret_in_text
from tests.export.leaks import (
    IMPORTS,
    ORDINARY,
    REFUSED,
    TAME,
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


RESISTING = ()  # refused for another reason


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Give the folder that is exported to and that of caches; temporary files go there too."""
    for name in ("out", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("NBPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path / "out", tmp_path / "cache"


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, places, tmp_path, monkeypatch, caplog):
    """What holds a secret is refused for that, and nothing that leaves holds it."""
    number = list(REFUSED).index(kind)
    text, held = filled(script(REFUSED[kind]), number)
    word = secrets_of(number)["$WORD"]
    monkeypatch.setenv("LEAK_PASSWORD", f"env-{word}")
    monkeypatch.setenv("LEAK_PLAIN", f"env-{word}")
    monkeypatch.setattr(getpass, "getpass", lambda *_: f"env-{word}")
    pipe = live(text, tmp_path / "home" / "way.py")
    with (
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(stdout),
        pytest.raises(ExportError) as refusal,
    ):
        pipe.export("loader.py", assets="npz")
    out = [path for place in places for path in place.rglob("*") if path.is_file()]
    everything = [seen_of(refusal.value), stdout.getvalue(), caplog.text]
    every = "\n".join(everything).encode() + b"".join(path.read_bytes() for path in out)
    assert out == []
    assert "secret" in str(refusal.value) or kind in RESISTING
    assert [one for one in (*held, word) if one.encode() in every] == [], str(refusal.value)


@pytest.mark.parametrize("line", TAME)
def test_no_secret(line: str):
    """What is written every day is no secret: neither in source nor as a value."""
    names: dict[str, object] = {}
    exec(IMPORTS + line, names)
    name = line.partition(" = ")[0]
    assert (secret_in_text(line), secret_in(name, names[name])) == (False, None)


def test_no_secret_in_code():
    """Ordinary functions, docstrings and comments that speak of tokens and passwords hold none."""
    assert (secret_in_text(ORDINARY), masked(ORDINARY)) == (False, ORDINARY)


@pytest.mark.slow
def test_ordinary_module(places, tmp_path):
    """All that is no secret is exported in one module."""
    pipe = live(tame_script(), tmp_path / "home" / "way.py")
    pipe.export("loader.py", check_items=0)
    text = Path("loader.py").read_text(encoding="utf-8")
    assert [line for line in TAME if line not in text] == []
