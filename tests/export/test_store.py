"""Storing a module: all files or none, edits are safe, the cache holds the module only."""

import json
import multiprocessing
import os
import pwd
import py_compile
import resource
import signal
import stat
import sys
from pathlib import Path

import pytest

from nbpipe import ArgumentError, ArgumentTypeError
from nbpipe.errors import ExportError, ModuleEditedError
from nbpipe.export import store
from nbpipe.export.store import Moved, cache_folder, stored
from tests.scripts import printed

OLD = '''"""Loader."""

import nbpipe

SIZE = 8


def build_pipeline(
    root: str = "data",
    *,
    decode_concurrency: int = 8,  # the disk's best
    decode_prefetch: int = 32,
    batch_size: int = 4,
) -> nbpipe.Pipeline:
    """Build."""
    return nbpipe.source([8, 32, 4])
'''
NEW = OLD.replace("concurrency: int = 8", "concurrency: int = 12").replace("int = 4", "int = 64")
OTHER = OLD.replace("SIZE = 8", "SIZE = 9")
ASSETS = {"my_loader.npz": b"arrays"}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Give a cache folder of its own."""
    folder = tmp_path_factory.mktemp("cache") / "nbpipe"
    monkeypatch.setenv("NBPIPE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def path(tmp_path):
    """Give the path of a module that does not exist."""
    return tmp_path / "my_loader.py"


def write(path, text=OLD, assets=None, *, overwrite=False):
    """Store a module."""
    return stored(path, text, assets or {}, overwrite=overwrite)


def files(folder):
    """Give the bytes of all files of a folder."""
    return {one.name: one.read_bytes() for one in folder.iterdir()}


# -- writing ---------------------------------------------------------------------------------------
def test_a_new_file(path):
    """The module and its assets are written, and nothing else."""
    written = write(path, OLD, ASSETS)
    assert (written.path, written.changed, written.patched) == (path, True, ())
    assert files(path.parent) == {"my_loader.py": OLD.encode(), **ASSETS}


def stamp(path):
    """Give what tells whether a file was written; when it was read is no part of that."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def test_identical_bytes_are_not_written(path):
    """A second time the files keep their times."""
    write(path, OLD, ASSETS)
    before = stamp(path)
    written = write(path, OLD, ASSETS)
    assert (written.changed, stamp(path)) == (False, before)


def test_a_foreign_file_of_identical_bytes_becomes_ours(path):
    """What would be written is there already: from then on it is known."""
    path.write_text(OLD)
    assert not write(path).changed
    assert write(path, OTHER).changed


def test_a_file_of_ours_is_replaced(path):
    """A file that nobody edited is replaced, whatever changed."""
    write(path)
    written = write(path, OTHER)
    assert (written.changed, written.patched, path.read_text()) == (True, (), OTHER)


def test_a_file_of_ours_in_another_place_is_replaced(path, tmp_path):
    """A file that was moved is known by its bytes."""
    write(path)
    moved = path.rename(tmp_path / "elsewhere.py")
    assert write(moved, OTHER).changed


def test_an_older_export_is_replaced(path):
    """A file that version control brought back is known, too."""
    write(path)
    write(path, OTHER)
    path.write_text(OLD)
    assert write(path, OLD + "# new\n").changed


def test_only_an_asset_changed(path):
    """The module stays untouched where only an asset is new."""
    write(path, OLD, ASSETS)
    before = stamp(path)
    written = write(path, OLD, {"my_loader.npz": b"others"})
    assert (written.changed, written.patched, stamp(path)) == (True, (), before)
    assert path.with_suffix(".npz").read_bytes() == b"others"


def test_paths_of_all_kinds(path, monkeypatch):
    """A str, a path and the home folder are understood."""
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.chdir(path.parent)
    found = [write(one).path for one in ("my_loader.py", str(path), path, "~/my_loader.py")]
    assert found == [path] * 4


def test_bytecode_of_the_old_file_is_not_taken(path):
    """A file of the same size, written in the same second, is compiled again."""
    write(path, "VALUE = 1\n")
    py_compile.compile(str(path), doraise=True)
    write(path, "VALUE = 2\n")
    assert printed("-c", "import my_loader; print(my_loader.VALUE)", cwd=path.parent) == "2\n"


# -- rights and links ------------------------------------------------------------------------------
def test_a_new_file_has_the_usual_rights(path):
    """The mode follows the umask, as for any file."""
    before = os.umask(0o027)
    try:
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_rights_stay(path):
    """The mode of a file that is replaced stays."""
    write(path)
    path.chmod(0o751)
    write(path, OTHER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of others")
def test_the_owner_stays(path):
    """A file that root replaces still belongs to its owner."""
    write(path)
    os.chown(path, 1234, 5678)
    write(path, OTHER)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


def test_a_link_stays(path, tmp_path):
    """Through a symbolic link its target is written."""
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "real.py"
    write(target)
    path.symlink_to(target)
    written = write(path, OTHER, ASSETS)
    assert (written.path, path.is_symlink(), target.read_text()) == (path, True, OTHER)
    assert set(files(tmp_path / "there")) == {"real.py"}
    assert path.with_suffix(".npz").read_bytes() == b"arrays"


def test_a_link_to_no_file_makes_it(path, tmp_path):
    """A link whose target is not there yet is written through as well."""
    path.symlink_to(tmp_path / "real.py")
    write(path)
    assert (path.is_symlink(), (tmp_path / "real.py").read_text()) == (True, OLD)


# -- refusing --------------------------------------------------------------------------------------
def test_a_foreign_file_is_refused(path):
    """What export did not write stays; the message shows what would become of it."""
    path.write_text("mine = 1\n")
    with pytest.raises(ModuleEditedError) as caught:
        write(path, "theirs = 2\n")
    assert str(caught.value) == (
        f"{str(path)!r} holds what export did not write; pass overwrite=True to replace it, or "
        "export to another path\n--- as it is\n+++ as it would be written\n@@ -1 +1 @@\n"
        "-mine = 1\n+theirs = 2"
    )
    assert files(path.parent) == {"my_loader.py": b"mine = 1\n"}


def test_an_edited_file_is_refused(path):
    """The message shows what was edited."""
    write(path)
    path.write_text(OLD.replace("SIZE = 8", "SIZE = 10"))
    with pytest.raises(ModuleEditedError, match="was edited since it was exported") as caught:
        write(path, OTHER)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line[:1] in "+-"] == [
        "--- as it was exported",
        "+++ as it is",
        "-SIZE = 8",
        "+SIZE = 10",
    ]


def test_overwrite_replaces_anything(path):
    """With overwrite=True an edited file and a foreign asset are replaced."""
    path.write_text("mine = 1\n")
    path.with_suffix(".npz").write_bytes(b"mine")
    assert write(path, OLD, ASSETS, overwrite=True).changed
    assert files(path.parent) == {"my_loader.py": OLD.encode(), **ASSETS}


def test_a_foreign_asset_is_refused(path):
    """Arrays of the user's own are not replaced, and the module is not written either."""
    path.with_suffix(".npz").write_bytes(b"mine")
    with pytest.raises(ModuleEditedError, match=r"my_loader.npz' holds what export did not write"):
        write(path, OLD, ASSETS)
    assert files(path.parent) == {"my_loader.npz": b"mine"}


def test_a_file_that_is_not_text_is_refused(path):
    """Bytes in no known encoding are shown as well as they can be."""
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModuleEditedError, match="holds what export did not write"):
        write(path)


@pytest.mark.slow
def test_the_difference_is_bounded(path):
    """A long difference is cut, in lines and in columns."""
    path.write_text("".join(f"x{number} = {'1' * 999}\n" for number in range(500)))
    with pytest.raises(ModuleEditedError) as caught:
        write(path)
    lines = str(caught.value).splitlines()
    assert (len(lines), max(map(len, lines[1:]))) == (62, 200)
    assert lines[-1].endswith("more lines")


def test_the_difference_holds_no_secret(path, monkeypatch):
    """Secrets that the user wrote into the file are not shown, not even in part."""
    monkeypatch.setenv("MY_API_KEY", "pa55word-of-mine")
    path.write_text(f"KEY = 'pa55word-of-mine'\nx = '{'-' * 185}hf_abcdefghijklmnopqrstuvwx'\n")
    with pytest.raises(ModuleEditedError) as caught:
        write(path)
    assert ("***" in str(caught.value), "pa55" in str(caught.value)) == (True, False)
    assert "hf_a" not in str(caught.value)


# -- patched defaults ------------------------------------------------------------------------------
MOVED = (Moved("decode_concurrency", "8", "12"), Moved("batch_size", "4", "64"))


def test_moved_knobs_of_an_unedited_file(path):
    """The file is the new text to the last byte, and it is said what moved."""
    write(path)
    assert (write(path, NEW).patched, path.read_text()) == (MOVED, NEW)


def test_moved_knobs_of_an_edited_file(path):
    """Only the defaults are rewritten; the edits stay, time after time."""
    write(path)
    path.write_bytes(OLD.replace("SIZE = 8", "SIZE = 10  # mine").replace("\n", "\r\n").encode())
    first = write(path, NEW)
    second = write(path, OLD)
    third = write(path, NEW)
    assert [one.patched == MOVED for one in (first, second, third)] == [True, False, True]
    expected = NEW.replace("SIZE = 8", "SIZE = 10  # mine").replace("\n", "\r\n")
    assert path.read_bytes() == expected.encode()


def test_an_edited_file_stays_while_nothing_moved(path):
    """Exporting the same again leaves an edited file alone."""
    write(path)
    path.write_text("# nothing left\n")
    before = stamp(path)
    assert (write(path).changed, stamp(path)) == (False, before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("concurrency: int = 8", "concurrency: int = 99"),
        ("    decode_concurrency: int = 8,  # the disk's best\n", ""),
        ("concurrency: int = 8", "concurrency: int"),
        ("build_pipeline", "build"),
        ('    """Build."""\n', "    pass\n\n\ndef build_pipeline(\n"),
        (") ->", ""),
    ],
)
def test_defaults_that_cannot_be_rewritten(path, before, after):
    """An edited file whose default was edited, is gone or cannot be read is refused, and shown."""
    write(path)
    edited = OLD.replace(before, after)
    path.write_text(edited)
    with pytest.raises(ModuleEditedError, match="was edited since it was exported") as caught:
        write(path, NEW)
    lost = next(line for line in OLD.splitlines() if line not in edited.splitlines())
    assert f"-{lost}" in str(caught.value).splitlines()
    assert path.read_text() == edited


def test_a_default_that_the_user_moved_to_the_same_value(path):
    """A default that already has the new value is no conflict."""
    write(path)
    path.write_text(OLD.replace("concurrency: int = 8", "concurrency: int = 12"))
    assert write(path, NEW).path.read_text() == NEW


def test_a_default_that_only_the_user_moved_stays(path):
    """A default of the user's own stays where no knob moved it."""
    write(path)
    path.write_text(OLD.replace("prefetch: int = 32", "prefetch: int = 99"))
    write(path, NEW)
    assert path.read_text() == NEW.replace("prefetch: int = 32", "prefetch: int = 99")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    batch_size: int = 4,\n", "    decode_timeout: int = 3,\n    batch_size: int = 4,\n"),
        ("[8, 32, 4])", "[8, 32, 4, 5])"),
        ("# the disk's best", "# best"),
        ("decode_prefetch: int", "decode_prefetch: int | None"),
        ("SIZE = 8", "SIZE = 9"),
        ("build_pipeline", "build"),
    ],
)
def test_more_than_defaults_is_not_written_into_an_edited_file(path, before, after):
    """Where the new text differs in more than defaults, an edited file is refused, and shown."""
    write(path)
    edited = OLD.replace("Loader.", "Loader of mine.")
    path.write_text(edited)
    with pytest.raises(ModuleEditedError, match=r"\+\"\"\"Loader of mine"):
        write(path, OLD.replace(before, after))
    assert path.read_text() == edited


def test_line_ends_of_version_control_are_no_edit(path):
    """A file of ours with other line ends is ours, and keeps them."""
    write(path)
    path.write_bytes(OLD.replace("\n", "\r\n").encode())
    assert not write(path).changed
    write(path, OTHER)
    assert path.read_bytes() == OTHER.replace("\n", "\r\n").encode()


# -- all or nothing --------------------------------------------------------------------------------
def failing(monkeypatch, number, error):
    """Have the replacing of a file fail, the `number`-th time."""
    calls = []
    replace = Path.replace

    def fake(self, target):
        if self.name.startswith(".nbpipe-"):
            calls.append(target)
            if len(calls) == number:
                raise error
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fake)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("existing", [True, False])
def test_a_failure_leaves_everything_as_it_was(path, monkeypatch, number, existing):
    """Whichever file fails, old files stay, new ones are gone, and there is no litter."""
    if existing:
        write(path, OLD, ASSETS)
    before = {one: one.stat().st_mtime_ns for one in path.parent.iterdir()}, files(path.parent)
    failing(monkeypatch, number, OSError(28, "No space left on device"))
    with pytest.raises(ExportError, match=r"No space left.*nothing was changed"):
        write(path, NEW, {"my_loader.npz": b"others"})
    after = {one: one.stat().st_mtime_ns for one in path.parent.iterdir()}, files(path.parent)
    assert after == before


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_leaves_everything_as_it_was(path, monkeypatch, number):
    """The stop button between two files puts the first one back."""
    write(path, OLD, ASSETS)
    before = files(path.parent)
    failing(monkeypatch, number, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write(path, NEW, {"my_loader.npz": b"others"})
    assert files(path.parent) == before


def test_after_a_failure_the_file_is_still_ours(path, monkeypatch):
    """A write that failed is not remembered."""
    write(path)
    with monkeypatch.context() as patched:
        failing(patched, 1, OSError(28, "No space left on device"))
        with pytest.raises(ExportError):
            write(path, OTHER)
    assert write(path, NEW).patched == MOVED


def test_a_full_disk(path):
    """A real limit on the size of files, reached while the asset is written."""
    write(path, OLD, ASSETS)
    before = files(path.parent)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ExportError, match="File too large"):
            write(path, NEW, {"my_loader.npz": bytes(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert files(path.parent) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where it likes")
def test_a_read_only_folder(path):
    """A folder that cannot be written is said to be so."""
    path.parent.chmod(0o555)
    with pytest.raises(ExportError, match="Permission denied"):
        write(path)
    path.parent.chmod(0o755)
    assert files(path.parent) == {}


def test_a_file_that_refuses_writing(path, monkeypatch):
    """A file that its owner made read-only is left alone."""
    write(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ExportError, match="read-only"):
        write(path, NEW)
    assert files(path.parent) == {"my_loader.py": OLD.encode()}


# -- the cache -------------------------------------------------------------------------------------
def test_the_cache_holds_the_module_and_no_more(path, cache):
    """Neither paths nor what the user wrote into the file is kept."""
    write(path)
    path.write_text(OLD.replace("SIZE = 8", "SIZE = 'my own secret'"))
    write(path, NEW)
    store = [json.loads(one.read_text()) for one in (cache / "exports").iterdir()]
    assert sorted(one["text"] for one in store) == sorted([OLD, NEW])
    assert {key for one in store for key in one} == {"format", "content", "text", "assets"}
    everything = b"".join(one.read_bytes() for one in (cache / "exports").iterdir())
    assert (b"my own" in everything, str(path.parent).encode() in everything) == (False, False)


def test_the_cache_is_the_users_alone(path, cache):
    """Nobody else can read it."""
    write(path)
    (record,) = (cache / "exports").iterdir()
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (record.parent, record)]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize(
    "damage", [b"", b"[1]", b"null", b"{", b"\xff", b'{"format": 99}', b"[" * 99_999]
)
def test_a_damaged_cache_is_ignored(path, cache, damage):
    """A file is then taken for the user's; a new path is no trouble."""
    write(path)
    for record in (cache / "exports").iterdir():
        record.write_bytes(damage)
    with pytest.raises(ModuleEditedError, match="holds what export did not write"):
        write(path, OTHER)
    assert write(path, OTHER, overwrite=True).changed
    assert write(path, OLD).changed


def test_a_cache_folder_that_cannot_be_made(path, cache):
    """Exporting works without it; what exists counts as the user's."""
    cache.write_text("a file in its place")
    assert write(path).changed
    assert not write(path).changed
    with pytest.raises(ModuleEditedError):
        write(path, OTHER)


def test_the_cache_is_bounded(path, cache, monkeypatch):
    """The oldest records go."""
    monkeypatch.setattr(store, "_KEPT", 3)
    for number in range(6):
        write(path, f"x = {number}\n")
    texts = [json.loads(one.read_text())["text"] for one in (cache / "exports").iterdir()]
    assert sorted(texts) == ["x = 3\n", "x = 4\n", "x = 5\n"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other folders")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/nbpipe"),
        ({}, "/home/me/.cache/nbpipe"),
        ({"NBPIPE_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    ],
)
def test_where_the_cache_lies(monkeypatch, variables, expected):
    """It is in the user's folder for caches, or where NBPIPE_CACHE_DIR says."""
    for name in ("NBPIPE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder()) == expected


def test_without_a_home(path, monkeypatch):
    """A user without a home folder exports without a cache."""

    def homeless(number):
        raise KeyError(number)

    for name in ("NBPIPE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", homeless)
    assert (cache_folder(), write(path).changed) == (None, True)


def write_often(path, letter):
    """Store modules one after the other."""
    for number in range(40):
        write(path, f"{letter} = {number}\n", overwrite=True)


@pytest.mark.slow
def test_two_processes_at_once(tmp_path, cache):
    """Records of two processes do not damage one another."""
    context = multiprocessing.get_context("fork")
    paths = [tmp_path / "same.py", tmp_path / "same.py", tmp_path / "other.py"]
    workers = [
        context.Process(target=write_often, args=(path, letter))
        for path, letter in zip(paths, "abc", strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        worker.close()
    found = [json.loads(one.read_text())["text"] for one in (cache / "exports").iterdir()]
    expected = [f"{letter} = {number}\n" for letter in "abc" for number in range(40)]
    assert sorted(found) == sorted(expected)
    assert [write(path, OLD).changed for path in (paths[0], paths[2])] == [True, True]
    assert sorted(files(tmp_path)) == ["other.py", "same.py"]


# -- paths -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loader", "must end in .py, got 'loader'; as 'loader.py'"),
        ("loader.ipynb", "must end in .py, got 'loader.ipynb'; as 'loader.py'"),
        ("my-loader.py", "can be imported, got 'my-loader.py'; as 'my_loader.py'"),
        ("my.loader.py", "can be imported, got 'my.loader.py'; as 'my_loader.py'"),
        ("2nd.py", "can be imported, got '2nd.py'; as 'loader.py'"),
        ("class.py", "can be imported, got 'class.py'; as 'class_loader.py'"),
        ("__init__.py", "can be imported, got '__init__.py'; as 'init.py'"),
        (".py", "must end in .py, got '.py'"),
        ("random.py", "hide Python's module; as 'random_loader.py'"),
        ("nbpipe.py", "hide nbpipe; as 'nbpipe_loader.py'"),
        ("numpy.py", "hide the installed module; as 'numpy_loader.py'"),
        ("missing/loader.py", "folder that exists, got 'missing/loader.py'; make 'missing' first"),
        ("folder.py", "must be a file, got 'folder.py', which is a folder"),
        ("pipe.py", "which is no ordinary file"),
        ("circle.py", "Symlink loop|Too many levels"),
        ("package.py", "must not have the name of a package beside it, got 'package.py'"),
        ("x" * 300 + ".py", "File name too long"),
        ("zero\0.py", "can be imported|null"),
        ("", "must end in .py|must be the path"),
        ("~nobody-of-this-name/loader.py", "home"),
    ],
)
def test_paths_that_are_refused(tmp_path, monkeypatch, name, words):
    """The message says what is wrong, and gives a path that would do."""
    monkeypatch.chdir(tmp_path)
    Path("folder.py").mkdir()
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    os.mkfifo("pipe.py")
    Path("circle.py").symlink_to("circle.py")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match=words):
        write(name)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("wrong", [None, 3, b"loader.py", ["loader.py"]])
def test_what_is_no_path(wrong):
    """Other objects are refused by their type."""
    with pytest.raises(ArgumentTypeError, match=r'must be a str or a path, got .*as "loader.py"'):
        write(wrong)
