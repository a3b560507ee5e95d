"""Exceptions of another process, as they are raised here."""

# ruff: noqa: N818  their names say what is odd about them

import json
import pickle
import traceback

import pytest

from nbpipe.errors import RemoteError, StageError
from nbpipe.executors.workers.remote_errors import pack_error
from nbpipe.executors.workers.serialize import serialize
from tests.executors.conftest import loose_module, output_of

CHILD = """
import pickle, sys
from nbpipe.executors.workers.remote_errors import pack_error
from nbpipe.executors.workers.serialize import load
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
    raise ExceptionGroup("two of them", [ValueError("v"), ExceptionGroup("in", [KeyError("k")])])
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
    return pickle.loads(output_of(CHILD, serialize(functions, stage="work").data))


def text_of(error):
    """Give what Python prints of an exception."""
    return "".join(traceback.format_exception(error))


def here(error):
    """Send an exception nowhere: pack and unpack it in this process."""
    return pickle.loads(pickle.dumps(pack_error(error))).unpack()


# -- what arrives ----------------------------------------------------------------------------------
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


def test_types_of_a_notebook(packed, module):
    """A class that was sent along is the class that it was; its `__init__` is not asked."""
    coded, slotted, stop = (packed[name].unpack() for name in ("coded", "slotted", "own_base"))
    found = type(coded), coded.args, coded.code, coded.detail
    assert found == (module.Coded, ("code 5",), 5, {"at": 3})
    assert (type(slotted), slotted.place, slotted.args) == (module.Slotted, 9, ("here",))
    assert (type(stop), str(stop)) == (module.Stop, "enough")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("locked", "raising_module.Locked: held", "cannot pickle '_thread.lock' object"),
        ("refuses", "raising_module.Refuses: x", "SystemExit: 3"),
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


def test_class_that_is_missing_here():
    """A class that cannot be found here has a stand-in."""
    data = pickle.dumps(pack_error(json.JSONDecodeError("bad", "x", 0)))
    data = data.replace(b"JSONDecodeError", b"JSONDecodeErrer")
    error = pickle.loads(data).unpack()
    assert (type(error), str(error)) == (
        RemoteError,
        "json.decoder.JSONDecodeErrer: bad: line 1 column 1 (char 0)",
    )


# -- how it reads ----------------------------------------------------------------------------------
def test_traceback_is_shown_once(packed, module):
    """The traceback names the worker's lines, with their source, and nothing twice."""
    text = text_of(packed["plain"].unpack())
    line = MODULE.splitlines().index('    raise ValueError("bad header", 7)') + 1
    frame = f'  File "{module.__file__}", line {line}, in plain\n'
    assert (text.count(frame), text.count("Traceback")) == (1, 1)
    assert text.endswith(
        f"{frame}    raise ValueError(\"bad header\", 7)\nValueError: ('bad header', 7)\n"
    )


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
    """A group keeps its members, and its own traceback."""
    group = packed["group"].unpack()
    value, inner = group.exceptions
    found = group.message, value.args, type(inner.exceptions[0])
    assert found == ("two of them", ("v",), KeyError)
    assert "in group\n" in text_of(group)


def test_deep_recursion(packed):
    """A traceback of a thousand frames is folded as Python folds it."""
    text = text_of(packed["deep"].unpack())
    assert ("[Previous line repeated" in text, len(text.splitlines()) < 30) == (True, True)


# -- nothing goes wrong ----------------------------------------------------------------------------
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
    found = type(back), back.__context__.__context__ is back, back.me is back
    assert found == (ValueError, True, True)


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
