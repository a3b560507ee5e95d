"""load: the module of a file becomes a pipeline, in any process and from any folder."""

import importlib
import inspect
import os
import pickle
import sys
import types

import pytest

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError, KnobError
from tests.scripts import METHODS, ran
from tests.show.inner import addresses, changes_since_export

CODE = '''
import enum
import functools
import os
from dataclasses import dataclass

import nbpipe

OFFSET = [10]


class Mode(enum.Enum):
    FAST = 1


@dataclass(frozen=True)
class Sample:
    number: int
    pid: int
    mode: Mode = Mode.FAST


@functools.lru_cache
def doubled(number):
    return 2 * number


def decode(number):
    return Sample(doubled(number) + OFFSET[0], os.getpid())


def is_sample(item):
    return isinstance(item, Sample) and item.mode is Mode.FAST


def build_pipeline(
    count: int = 4,
    *,
    executor: str | None = None,
    decode_concurrency: int = 2,
    decode_prefetch: int | None = None,
    batch_size: int = 2,
) -> nbpipe.Pipeline:
    """Build."""
    return (
        nbpipe.source(range(count))
        .map(
            decode,
            executor=executor,
            concurrency=decode_concurrency,
            prefetch=decode_prefetch,
        )
        .filter(is_sample, executor=executor)
        .batch(batch_size, collate=list)
    )
'''


@pytest.fixture(autouse=True)
def modules():
    """Forget the modules that a test loads; nothing but them may be left behind."""
    before, path = dict(sys.modules), list(sys.path)
    yield before
    for name in set(sys.modules) - set(before):
        if "loader" in name:
            del sys.modules[name]
    assert sys.path == path


@pytest.fixture
def file(tmp_path):
    """Write a module."""
    path = tmp_path / "my_loader.py"
    path.write_text(CODE)
    return path


def numbers(pipe):
    """Give the numbers of all items."""
    return [sample.number for batch in pipe for sample in batch]


def changes(pipe):
    """Give the knobs that differ from the file, with the exported values and those in force."""
    since = changes_since_export(addresses(pipe.chain))
    return since.path, [(f"{one.stage}.{one.knob}", one.exported, one.now) for one in since.changes]


# -- loading ---------------------------------------------------------------------------------------
def test_a_pipeline_with_its_knobs(file):
    """The pipeline has the defaults of the file as its knobs, and gives its items."""
    pipe = nbpipe.load(file)
    assert (pipe["decode"].concurrency, numbers(pipe)) == (2, [10, 12, 14, 16])


def test_changes_take_the_place_of_defaults(file):
    """A change is passed on, whatever its name."""
    file.write_text(CODE.replace("count: int", "path: int").replace("(count)", "(path)"))
    pipe = nbpipe.load(file, decode_concurrency=3, path=2)
    assert (pipe["decode"].concurrency, numbers(pipe)) == (3, [10, 12])


def test_paths_of_all_kinds(file, monkeypatch):
    """A str, a path and the home folder are understood, and mean one name."""
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.chdir(file.parent)
    paths = ["my_loader.py", "./../" + file.parent.name + "/my_loader.py", file, "~/my_loader.py"]
    functions = [nbpipe.load(path)["decode"].fn for path in paths]
    assert [fn.__module__ for fn in functions] == ["my_loader"] * 4


def test_the_module_is_like_any_other(file):
    """Pickle, inspect and the like find what they need."""
    fn = nbpipe.load(file)["decode"].fn
    module = sys.modules["my_loader"]
    sample = module.Sample(1, 2)
    assert (pickle.loads(pickle.dumps(sample)), pickle.loads(pickle.dumps(fn))) == (sample, fn)
    assert (module.__file__, inspect.getsource(fn)) == (str(file), inspect.getsource(module.decode))
    assert module.__name__ == module.__spec__.name == "my_loader"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_scripted_functions(file):
    """torch.jit finds the source."""
    file.write_text(
        CODE + "import torch\n@torch.jit.script\ndef scripted(x: int) -> int:\n    return x + 1\n"
    )
    nbpipe.load(file)
    assert sys.modules["my_loader"].scripted(1) == 2


def test_no_bytecode_is_written(file):
    """Loading leaves nothing beside the file."""
    nbpipe.load(file)
    assert [one.name for one in file.parent.iterdir()] == ["my_loader.py"]


def test_an_edited_file_is_run_again(file):
    """An edit of the same size in the same second counts; older pipelines keep their functions."""
    old = nbpipe.load(file)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text(CODE.replace("[10]", "[50]"))
    os.utime(file, ns=times)
    new = nbpipe.load(file)
    assert (numbers(old), numbers(new)) == ([10, 12, 14, 16], [50, 52, 54, 56])


def test_its_neighbours_can_be_imported(file, modules):
    """A module beside the file is found; the import path is as before."""
    (file.parent / "my_neighbour.py").write_text("OFFSET = [70]\n")
    file.write_text(CODE + "from my_neighbour import OFFSET\n")
    path = list(sys.path)
    try:
        assert numbers(nbpipe.load(file, count=1)) == [70]
    finally:
        sys.modules.pop("my_neighbour", None)
    assert sys.path == path


def test_a_module_that_loads_another(file):
    """A file may load a second one."""
    second = file.with_name("my_second.py")
    second.write_text(
        f"import nbpipe\ndef build_pipeline():\n    return nbpipe.load({str(file)!r}, count=1)\n"
    )
    assert numbers(nbpipe.load(second)) == [10]


# -- names -----------------------------------------------------------------------------------------
def name_of(pipe):
    """Give the name of the module that a pipeline came from."""
    return pipe["decode"].fn.__module__


def test_two_files_of_one_name(file, tmp_path):
    """Each is a module of its own."""
    other = tmp_path / "other" / "my_loader.py"
    other.parent.mkdir()
    other.write_text(CODE.replace("[10]", "[50]"))
    pipes = [nbpipe.load(file), nbpipe.load(other), nbpipe.load(file)]
    assert [numbers(pipe)[0] for pipe in pipes] == [10, 50, 10]
    assert [name_of(pipe).startswith("my_loader") for pipe in pipes] == [True] * 3
    assert len({name_of(pipe) for pipe in pipes}) == 2


@pytest.mark.parametrize("stem", ["fractions", "xdrlib_", "nbpipe", "colorsys"])
def test_a_name_that_is_taken(file, stem):
    """No module of Python, of a package or in use is hidden, even where it is imported later."""
    taken = types.ModuleType("xdrlib_")
    sys.modules["xdrlib_"] = taken
    before = sys.modules.get(stem)
    try:
        pipe = nbpipe.load(file.rename(file.with_name(f"{stem}.py")))
        assert (name_of(pipe) != stem, sys.modules.get(stem)) == (True, before)
        assert name_of(pipe) in sys.modules
    finally:
        del sys.modules["xdrlib_"]


def test_a_module_that_can_be_imported_elsewhere(file, tmp_path, monkeypatch):
    """The name of another file on the import path is left to it."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "my_loader.py").write_text("first = True\n")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    pipe = nbpipe.load(file)
    try:
        assert importlib.import_module("my_loader").first
    finally:
        del sys.modules["my_loader"]
    assert name_of(pipe) != "my_loader"


def test_a_stem_that_is_no_name(file):
    """A file need not have the name of a module."""
    pipe = nbpipe.load(file.rename(file.with_name("my-loader 2.py")))
    assert (name_of(pipe), numbers(pipe)[0]) == ("my_loader_2", 10)


# -- the exported values ---------------------------------------------------------------------------
def test_nothing_differs_from_the_file(file):
    """A pipeline as the file has it shows no change; one that was turned does."""
    pipe = nbpipe.load(file)
    unchanged = changes(pipe)
    pipe["decode"].concurrency = 5
    assert unchanged == (file, [])
    assert changes(pipe) == (file, [("decode.concurrency", 2, 5)])


def test_a_change_differs_from_the_file(file):
    """A change shows against the default; a default that is no int does not count."""
    pipe = nbpipe.load(file, decode_concurrency=12, decode_prefetch=7)
    assert changes(pipe) == (file, [("decode.concurrency", 2, 12)])


BRANCHES = """
import nbpipe

def build_pipeline(*, abs_jpg_concurrency=3, int_concurrency=2):
    return (
        nbpipe.source(range(4))
        .route(
            lambda number: "jpg",
            {"jpg": lambda chain: chain.map(abs, concurrency=abs_jpg_concurrency)},
        )
        .map(float, name="float", executor="process", concurrency=int_concurrency)
        .map(int, name="int", executor="process")
    )
"""


def test_branches_and_shared_workers(file):
    """A stage of a branch has its parameter, and stages in the same workers have one."""
    file.write_text(BRANCHES)
    pipe = nbpipe.load(file, abs_jpg_concurrency=5, int_concurrency=4)
    expected = [("abs@jpg.concurrency", 3, 5), ("float.concurrency", 2, 4)]
    assert changes(pipe) == (file, expected)


# -- refusing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("my_loder.py", "got 'my_loder.py', which does not exist; did you mean 'my_loader.py'"),
        ("missing/loader.py", "does not exist; write one with pipe.export"),
        (".", r"got '.', a folder; give the file, for example load\('loader.py'\)"),
        ("note.txt", "got 'note.txt', which does not end in .py"),
        ("my_loader", "does not exist; did you mean 'my_loader.py'"),
        ("", "must be a Python file"),
        ("zero\0.py", "does not exist"),
    ],
)
def test_paths_that_are_refused(file, monkeypatch, path, words):
    """The message says what is wrong, and what to give instead."""
    monkeypatch.chdir(file.parent)
    (file.parent / "note.txt").touch()
    with pytest.raises(ArgumentError, match=words):
        nbpipe.load(path)


@pytest.mark.parametrize("path", [None, 3, ["my_loader.py"]])
def test_what_is_no_path(path):
    """Other objects are refused by their type."""
    with pytest.raises(ArgumentTypeError, match="load path must be a str or a path"):
        nbpipe.load(path)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\n", "which has none; write one with"),
        ("def build_pipline(): pass\n", "which has none; did you mean 'build_pipline'"),
        ("build_pipeline = 3\n", "which has none"),
        ("def build_pipeline(): return [1]\n", "must return an nbpipe.Pipeline, got list"),
        (
            "def build_pipeline(root, *, size): pass\n",
            r"load\('my_loader.py', root=..., size=...\)",
        ),
    ],
)
def test_modules_that_are_refused(file, code, words):
    """The message says what the module has and lacks."""
    file.write_text(code)
    with pytest.raises(ArgumentError, match=words):
        nbpipe.load(file)


def test_an_unknown_parameter(file):
    """The message names the near match, and all there are."""
    with pytest.raises(ArgumentError) as caught:
        nbpipe.load(file, decode_concurency=3)
    assert str(caught.value) == (
        f"build_pipeline of {str(file)!r} has no parameter 'decode_concurency'; did you mean "
        "'decode_concurrency'? (parameters: count, executor, decode_concurrency, "
        "decode_prefetch, batch_size)"
    )


def test_parameters_of_any_name(file):
    """Where the function takes any keyword, every change is passed on."""
    file.write_text(
        "import nbpipe\ndef build_pipeline(**knobs):\n    return nbpipe.source(list(knobs))\n"
    )
    assert list(nbpipe.load(file, a=1, b=2)) == ["a", "b"]


@pytest.mark.parametrize("value", [0, "many", 1.5, True])
def test_a_change_of_a_wrong_kind(file, value):
    """The knob's own error says what it takes."""
    with pytest.raises(KnobError, match=r"decode.concurrency must be an int in \[1, 1024\] calls"):
        nbpipe.load(file, decode_concurrency=value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise LookupError('mine')\n", LookupError),
        ("import there_is_no_such_module\n", ModuleNotFoundError),
        ("def build_pipeline(:\n", SyntaxError),
        ("raise SystemExit(3)\n", SystemExit),
        ("# coding: no-such-coding\n", SyntaxError),
        ("x = '\0'\n", (SyntaxError, ValueError)),
    ],
)
def test_errors_of_the_module(file, modules, code, kind):
    """They come as they are, with a note that names the file; no module is left."""
    file.write_text(code)
    with pytest.raises(kind) as caught:
        nbpipe.load(file)
    assert caught.value.__notes__ == [f"nbpipe was loading {str(file)!r}"]
    assert set(sys.modules) - set(modules) == set()


def test_an_edit_that_fails_leaves_the_old_module(file):
    """The module that was loaded before stays, and the file is run again when it is mended."""
    nbpipe.load(file)
    before = sys.modules["my_loader"]
    file.write_text(CODE + "raise LookupError('mine')\n")
    with pytest.raises(LookupError):
        nbpipe.load(file)
    kept = sys.modules["my_loader"]
    file.write_text(CODE.replace("[10]", "[50]"))
    assert (kept is before, numbers(nbpipe.load(file))[0]) == (True, 50)


# -- worker processes ------------------------------------------------------------------------------
SCRIPT = """
    import os, sys
    import nbpipe

    before = list(sys.path)
    pipe = nbpipe.load({path!r}, executor="process")
    module = sys.modules[pipe["decode"].fn.__module__]
    for isolate in (False, True):
        with pipe.start(isolate=isolate) as run:
            for _ in range(2):
                samples = [sample for batch in run for sample in batch]
        print([sample.number for sample in samples])
        print(all(module.is_sample(sample) for sample in samples), sys.path == before)
        print(os.getpid() in [sample.pid for sample in samples])
"""
LINES = "[10, 12, 14, 16]\nTrue True\nFalse\n" * 2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["beside", "elsewhere"])
def test_process_stages(file, tmp_path, method, place):
    """Functions, classes and enums reach workers from any folder, isolated or not."""
    folder = tmp_path if place == "beside" else tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    text = SCRIPT.format(path=os.path.relpath(file, folder))
    assert ran(text, folder, method=method) == (0, LINES, "")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_process_stages_with_neighbours(file, tmp_path, method):
    """What the module imports from its own folder goes along."""
    (tmp_path / "my_neighbour.py").write_text("def neighbours():\n    return [10]\n")
    file.write_text(CODE + "import my_neighbour\nOFFSET = my_neighbour.neighbours()\n")
    file.write_text(file.read_text().replace("OFFSET[0]", "my_neighbour.neighbours()[0]"))
    (tmp_path / "elsewhere").mkdir()
    text = SCRIPT.format(path="../my_loader.py")
    assert ran(text, tmp_path / "elsewhere", method=method) == (0, LINES, "")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["beside", "elsewhere"])
def test_process_stages_after_an_edit(file, tmp_path, place):
    """A new pipeline runs the new functions in its workers, an old one those it was built of."""
    folder = tmp_path if place == "beside" else tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    text = f"""
        import pathlib
        import nbpipe

        file = pathlib.Path({str(file)!r})
        old = nbpipe.load(file, executor="process")
        file.write_text(file.read_text().replace("2 * number", "number * 4"))
        new = nbpipe.load(file, executor="process")
        for pipe in (new, old):
            print([sample.number for batch in pipe for sample in batch])
    """
    expected = "[10, 14, 18, 22]\n[10, 12, 14, 16]\n"
    assert ran(text, folder) == (0, expected, "")


@pytest.mark.slow
def test_two_files_of_one_name_in_workers(file, tmp_path):
    """Each pipeline's workers run the functions of its own file."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my_loader.py").write_text(CODE.replace("[10]", "[50]"))
    text = """
        import nbpipe

        paths = ["my_loader.py", "other/my_loader.py"]
        pipes = [nbpipe.load(path, executor="process") for path in paths]
        for pipe in pipes * 2:
            print([sample.number for batch in pipe for sample in batch])
    """
    expected = "[10, 12, 14, 16]\n[50, 52, 54, 56]\n" * 2
    assert ran(text, tmp_path) == (0, expected, "")
