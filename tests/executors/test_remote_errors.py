"""Exceptions of another process, as they are raised here."""

# ruff: noqa: N818  their names say what is odd about them

import asyncio
import json
import linecache
import pickle
import sys
import threading
import traceback

import pytest

from nbpipe.errors import RemoteError, StageError
from nbpipe.executors.remote_errors import pack_error
from nbpipe.executors.shipping import ship
from tests.executors.conftest import loose_module, output_of

CHILD = """
import pickle, sys
from nbpipe.executors.remote_errors import pack_error
from nbpipe.executors.shipping import load
packed = {}
for name, function in load(sys.stdin.buffer.read()).items():
    try:
        function()
    except BaseException as error:
        packed[name] = pack_error(error)
sys.stdout.buffer.write(pickle.dumps(packed))
"""
MODULE = """
import json, threading


class Coded(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class Slotted(Exception):
    __slots__ = ("place",)


class Locked(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class FromTheSystem(OSError):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")
    __repr__ = __str__


class Refuses(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class Stop(BaseException):
    pass


def plain():
    raise ValueError("bad header", 7)


def coded():
    raise Coded(5, detail={"at": 3})


def slotted():
    error = Slotted("here")
    error.place = 9
    raise error


def locked():
    raise Locked("held")


def from_the_system():
    raise FromTheSystem(5, detail=1)


def local():
    class Hidden(Exception):
        pass
    raise Hidden("inside")


def missing_file():
    open("/no/such/file")


def bad_text():
    b"a\\xff".decode()


def bad_json():
    json.loads("[1,")


def bad_syntax():
    compile("a = = 1", "<cell>", "exec")


def deep(n=0):
    return deep(n + 1)


def stopped():
    raise KeyboardInterrupt


def left():
    raise SystemExit(4)


def own_base():
    raise Stop("enough")


def silent():
    raise Silent("x")


def refuses():
    raise Refuses("x")


def chained():
    try:
        try:
            {}["key"]
        except KeyError:
            raise Locked("in between")
    except Locked as error:
        raise ValueError("at last") from error


def suppressed():
    try:
        {}["key"]
    except KeyError:
        raise ValueError("alone") from None


def noted():
    error = ValueError("x")
    error.add_note("while reading a.jpg")
    raise error


def group():
    errors = []
    for function in (plain, locked):
        try:
            function()
        except Exception as error:
            errors.append(error)
    errors.append(ExceptionGroup("inner", [KeyError("k")]))
    raise ExceptionGroup("two of them", errors)


def large():
    raise ValueError("x" * 3_000_000)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """Give a module of functions that raise, loaded by its path."""
    with loose_module(tmp_path_factory.mktemp("raising") / "raising_module.py", MODULE) as module:
        yield module


@pytest.fixture(scope="module")
def packed(module):
    """Call all functions of the module in one fresh process; give what they raised, packed."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type)
    }
    return pickle.loads(output_of(CHILD, ship(functions, stage="work").data))


def text_of(error):
    """Give what Python prints of an exception."""
    return "".join(traceback.format_exception(error))


def here(error):
    """Send an exception nowhere: pack and unpack it in this process."""
    return pickle.loads(pickle.dumps(pack_error(error))).unpack()


# -- what arrives -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind", "args"),
    [
        ("plain", ValueError, ("bad header", 7)),
        ("missing_file", FileNotFoundError, (2, "No such file or directory")),
        ("bad_text", UnicodeDecodeError, ("utf-8", b"a\xff", 1, 2, "invalid start byte")),
        ("bad_json", json.JSONDecodeError, None),
        ("bad_syntax", SyntaxError, None),
        ("deep", RecursionError, None),
        ("stopped", KeyboardInterrupt, ()),
        ("left", SystemExit, (4,)),
    ],
)
def test_type_and_arguments(packed, name, kind, args):
    """An exception keeps its type and its arguments; interrupts and exits are kept, too."""
    error = packed[name].unpack()
    assert (type(error), args is None or error.args == args) == (kind, True)


def test_attributes_of_the_system(packed):
    """What an exception holds beside its arguments is there."""
    missing, left, syntax = (
        packed[name].unpack() for name in ("missing_file", "left", "bad_syntax")
    )
    assert (missing.filename, missing.errno, left.code, syntax.lineno) == ("/no/such/file", 2, 4, 1)


def test_types_of_a_notebook(packed, module):
    """A class that was sent along is the class that it was; its `__init__` is not asked."""
    coded, slotted, stop = (packed[name].unpack() for name in ("coded", "slotted", "own_base"))
    assert (type(coded), coded.args, coded.code, coded.detail) == (
        module.Coded,
        ("code 5",),
        5,
        {"at": 3},
    )
    assert (type(slotted), slotted.place, slotted.args) == (module.Slotted, 9, ("here",))
    assert (type(stop), str(stop)) == (module.Stop, "enough")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("locked", "raising_module.Locked: held", "cannot pickle '_thread.lock' object"),
        ("from_the_system", "raising_module.FromTheSystem: code 5", "TypeError: FromTheSystem."),
        ("refuses", "raising_module.Refuses: x", "SystemExit: 3"),
        ("large", "ValueError: " + "x" * 10_000, "it is larger than 1 MiB"),
    ],
)
def test_stand_in(packed, name, text, why):
    """What cannot be sent has a stand-in with its type, its message, its traceback, the reason."""
    error = packed[name].unpack()
    assert (type(error), str(error), f"in {name}\n" in text_of(error)) == (RemoteError, text, True)
    assert why in error.__notes__[-1]


def test_class_of_the_worker_alone(packed):
    """A class that exists in the worker alone arrives with the exception."""
    error = packed["local"].unpack()
    assert (type(error).__name__, str(error)) == ("Hidden", "inside")


def test_without_a_text(packed, module):
    """An exception whose text raises is sent like others."""
    assert type(packed["silent"].unpack()) is module.Silent


def test_class_that_is_missing_here():
    """A class that cannot be found here has a stand-in."""
    data = pickle.dumps(pack_error(json.JSONDecodeError("bad", "x", 0)))
    data = data.replace(b"JSONDecodeError", b"JSONDecodeErrer")
    error = pickle.loads(data).unpack()
    assert (type(error), str(error)) == (
        RemoteError,
        "json.decoder.JSONDecodeErrer: bad: line 1 column 1 (char 0)",
    )


# -- how it reads -------------------------------------------------------------------------
def test_traceback_is_shown_once(packed, module):
    """The traceback names the worker's lines, with their source, and nothing twice."""
    text = text_of(packed["plain"].unpack())
    line = MODULE.splitlines().index('    raise ValueError("bad header", 7)') + 1
    frame = f'  File "{module.__file__}", line {line}, in plain\n'
    assert (text.count(frame), text.count("Traceback")) == (1, 1)
    assert text.endswith(
        f"{frame}    raise ValueError(\"bad header\", 7)\nValueError: ('bad header', 7)\n"
    )


@pytest.mark.parametrize("name", ["plain", "bad_json", "coded", "suppressed", "slotted"])
def test_reads_as_if_raised_here(packed, module, name):
    """Below the call itself all lines, and the marks under them, are those of a local call."""
    try:
        getattr(module, name)()
    except Exception as error:
        local = text_of(error.with_traceback(error.__traceback__.tb_next))
    remote = packed[name].unpack()
    assert text_of(remote.with_traceback(remote.__traceback__.tb_next)) == local


def test_reads_the_same_after_a_journey():
    """The place in a line is kept, also where code spans lines."""

    def failing(x):
        return [
            x / y if x else "ä"
            for y in (1, 0)
        ]  # fmt: skip

    try:
        failing(2)
    except ZeroDivisionError as error:
        local, remote = text_of(error), text_of(here(error))
    assert remote == local


def test_notebook_shows_it(packed):
    """IPython's traceback shows the worker's lines with their surroundings."""
    ultratb = pytest.importorskip("IPython.core.ultratb")
    error = packed["coded"].unpack()
    shown = ultratb.VerboseTB(theme_name="nocolor", include_vars=False).text(
        type(error), error, error.__traceback__
    )
    assert 'raise Coded(5, detail={"at": 3})' in shown


def test_reads_well_as_a_cause(packed):
    """As the cause of a stage's error it stands above it, with its own traceback."""
    surfaced = StageError("stage 'decode' failed on item 3", stage="decode", path=3)
    surfaced.__cause__ = packed["plain"].unpack()
    surfaced = here(surfaced)
    parts = text_of(surfaced).split("\nThe above exception was the direct cause of the following")
    assert [part.count("in plain\n") for part in parts] == [1, 0]
    assert (surfaced.stage, surfaced.path) == ("decode", 3)


def test_chain(packed, module):
    """Causes and contexts are kept, also beyond one that cannot be sent itself."""
    error = packed["chained"].unpack()
    cause = error.__cause__
    assert [type(one) for one in (error, cause, cause.__context__)] == [
        ValueError,
        RemoteError,
        KeyError,
    ]
    assert error.__context__ is cause
    assert text_of(error).count("in chained\n") == 3


def test_suppressed_context(packed):
    """`raise ... from None` still hides what came before."""
    error = packed["suppressed"].unpack()
    assert (type(error.__context__), text_of(error).count("KeyError")) == (KeyError, 0)


def test_notes(packed):
    """Notes are kept."""
    assert packed["noted"].unpack().__notes__ == ["while reading a.jpg"]


def test_group(packed):
    """A group keeps its members, each with its own traceback; one has a stand-in."""
    group = packed["group"].unpack()
    plain, locked, inner = group.exceptions
    assert (type(group), group.message, type(inner.exceptions[0])) == (
        ExceptionGroup,
        "two of them",
        KeyError,
    )
    assert (type(plain), type(locked)) == (ValueError, RemoteError)
    assert ("in plain\n" in text_of(plain), "in locked\n" in text_of(locked)) == (True, True)


def test_deep_recursion(packed):
    """A traceback of a thousand frames is folded as Python folds it."""
    text = text_of(packed["deep"].unpack())
    assert ("[Previous line repeated" in text, len(text.splitlines()) < 30) == (True, True)


def test_very_long_traceback():
    """Of a longer one the ends are kept, and a note counts the rest."""

    def deep(n):
        return deep(n - 1) if n else 1 / 0

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)
    try:
        deep(2000)
    except ZeroDivisionError as error:
        back = here(error)
    finally:
        sys.setrecursionlimit(limit)
    steps = list(traceback.walk_tb(back.__traceback__))
    assert (len(steps), steps[0][0].f_code.co_name) == (1024, "test_very_long_traceback")
    assert back.__notes__ == ["978 frames in the middle of its traceback were left out"]


def test_source_that_is_missing_here():
    """A line that only the other machine has is shown as it was there."""
    name = "/another/machine/stages.py"
    linecache.cache[name] = (1, None, ["def decode(x):\n", "    return 1 / x\n"], name)
    names = {}
    exec(compile("def decode(x):\n    return 1 / x\n", name, "exec"), names)
    try:
        names["decode"](0)
    except ZeroDivisionError as error:
        data = pickle.dumps(pack_error(error))
    del linecache.cache[name]
    text = text_of(pickle.loads(data).unpack())
    known = text_of(pickle.loads(data).unpack())
    del linecache.cache[name]
    assert f'File "{name}", line 2, in decode\n    return 1 / x\n' in text
    assert known == text


def test_two_borders(packed):
    """An exception that crosses two borders reads as after one."""
    once = packed["chained"].unpack()
    assert text_of(here(here(once))) == text_of(once)


def test_frames_can_be_looked_at(packed):
    """Debuggers find frames without variables; none keeps anything of this process alive."""
    (frame, _), *_ = traceback.walk_tb(packed["plain"].unpack().__traceback__.tb_next)
    assert (frame.f_locals, frame.f_back, frame.f_code.co_qualname) == ({}, None, "plain")


# -- nothing goes wrong -------------------------------------------------------------------
class Hostile(Exception):
    """Stands for an exception that does not want to be looked at."""

    @property
    def __notes__(self):
        raise MemoryError

    @property
    def __dict__(self):
        raise KeyboardInterrupt

    def __str__(self):
        raise SystemExit


def test_packing_never_raises():
    """Whatever an exception does when it is looked at, something is sent."""
    error = here(Hostile())
    assert (type(error), "Hostile" in str(error)) == (RemoteError, True)


@pytest.mark.parametrize("beside", ["json", "distributed"])
def test_circles(beside):
    """Exceptions that are each other's context, or hold themselves, are no trap.

    Nor is Dask, which has exceptions pickled with their tracebacks and causes.
    """
    pytest.importorskip(beside)
    one, other = ValueError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one
    one.me = one
    back = here(one)
    assert (type(back), back.__context__.__context__ is back, back.me is back) == (
        ValueError,
        True,
        True,
    )


def test_bounded_chain():
    """Of a very long chain the newest exceptions are sent."""
    error = None
    for number in range(1000):
        following = ValueError(number)
        following.__context__ = error
        error = following
    back, count = here(error), 0
    while back is not None:
        back, count = back.__context__, count + 1
    assert (count, len(pickle.dumps(pack_error(error))) < 10_000) == (32, True)


def test_holds_a_lock():
    """An exception that holds what cannot be sent keeps its cause."""
    error = ValueError("x")
    error.lock, error.__cause__ = threading.Lock(), KeyError("k")
    back = here(error)
    assert (type(back), str(back), type(back.__cause__)) == (RemoteError, "ValueError: x", KeyError)


def test_cancelled():
    """A cancelled coroutine's exception stays what it is."""
    assert type(here(asyncio.CancelledError("late"))) is asyncio.CancelledError


CALLS = []


def rebuild(word):
    """Build an exception, and note that it was built."""
    CALLS.append(word)
    return Watched(word)


class Watched(Exception):
    """Stands for an exception that says how it is built, and notes what is asked of it."""

    def __init__(self, word):
        CALLS.append("init")
        super().__init__(word)

    def __reduce__(self):
        return rebuild, ("rebuilt",)

    def __setstate__(self, state):
        CALLS.append("setstate")

    def __str__(self):
        CALLS.append("str")
        return "watched"

    __repr__ = __str__


def test_unpacking_runs_what_reduce_says_alone():
    """To unpack an exception is to do what its `__reduce__` says, once, and nothing else."""
    data = pickle.dumps(pack_error(Watched("first")))
    CALLS.clear()
    packed = pickle.loads(data)
    before = list(CALLS)
    error = packed.unpack()
    assert (before, CALLS, error.args) == ([], ["rebuilt", "init"], ("rebuilt",))


def test_arrives_as_something_else():
    """A `__reduce__` that gives no exception at all costs nothing but the type."""

    class Odd(Exception):
        def __reduce__(self):
            return dict, ()

    assert "it arrived as dict" in here(Odd("x")).__notes__[0]
