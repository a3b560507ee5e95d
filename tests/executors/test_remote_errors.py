"""Exceptions of another process, as they are raised here."""

import importlib.util
import json
import traceback

import pytest

import nbpipe
from nbpipe import RemoteError, StageError
from tests.executors.conftest import loose_module

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


class Hostile(Exception):
    @property
    def __notes__(self):
        raise MemoryError

    @property
    def __dict__(self):
        raise KeyboardInterrupt

    def __str__(self):
        raise SystemExit


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


def gone():
    json.decoder.Gone = type("Gone", (Exception,), {"__module__": "json.decoder"})
    raise json.decoder.Gone("not here")


def hostile():
    raise Hostile


def circle():
    one, other = ValueError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one
    one.me = one
    raise one


def circle_beside_dask():
    import distributed
    circle()


def long_chain():
    error = None
    for number in range(1000):
        following = ValueError(number)
        following.__context__ = error
        error = following
    raise error
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """Give a module of functions that raise, loaded by its path."""
    with loose_module(tmp_path_factory.mktemp("raising") / "raising_module.py", MODULE) as module:
        yield module


@pytest.fixture(scope="module")
def surfaced(module):
    """Call all functions of the module in one worker; give the errors that the loop sees."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type)
    }
    if importlib.util.find_spec("distributed") is None:
        del functions["circle_beside_dask"]
    names, errors = list(functions), {}
    pipe = nbpipe.source(names).map(
        lambda name: functions[name](), executor="process", name="decode"
    )
    with pipe.start() as run:
        for index, name in enumerate(names):
            try:
                list(run.iterate([index]))
            except BaseException as error:
                errors[name] = error
    return errors


@pytest.fixture(scope="module")
def raised(surfaced):
    """Give what the functions raised, as it arrives in this process."""
    return {name: error.__cause__ or error for name, error in surfaced.items()}


def text_of(error):
    """Give what Python prints of an exception."""
    return "".join(traceback.format_exception(error))


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
def test_type_and_arguments(raised, name, kind, args):
    """An exception keeps its type and its arguments; interrupts and exits are kept, too."""
    error = raised[name]
    assert (type(error), args is None or error.args == args) == (kind, True)


def test_types_of_a_notebook(raised, module):
    """A class that was sent along is the class that it was; its `__init__` is not asked."""
    coded, slotted, stop = (raised[name] for name in ("coded", "slotted", "own_base"))
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
def test_stand_in(raised, name, text, why):
    """What cannot be sent has a stand-in with its type, its message, its traceback, the reason."""
    error = raised[name]
    assert (type(error), str(error), f"in {name}\n" in text_of(error)) == (RemoteError, text, True)
    assert why in error.__notes__[-1]


def test_class_of_the_worker_alone(raised):
    """A class that exists in the worker alone arrives with the exception."""
    error = raised["local"]
    assert (type(error).__name__, str(error)) == ("Hidden", "inside")


def test_class_that_is_missing_here(raised):
    """A class that cannot be found here has a stand-in."""
    error = raised["gone"]
    assert (type(error), str(error)) == (RemoteError, "json.decoder.Gone: not here")


# -- how it reads ----------------------------------------------------------------------------------
def test_traceback_is_shown_once(raised, module):
    """The traceback names the worker's lines, with their source, and nothing twice."""
    text = text_of(raised["plain"])
    line = MODULE.splitlines().index('    raise ValueError("bad header", 7)') + 1
    frame = f'  File "{module.__file__}", line {line}, in plain\n'
    assert (text.count(frame), text.count("Traceback")) == (1, 1)
    assert text.endswith(
        f"{frame}    raise ValueError(\"bad header\", 7)\nValueError: ('bad header', 7)\n"
    )


def test_notebook_shows_it(raised):
    """IPython's traceback shows the worker's lines with their surroundings."""
    ultratb = pytest.importorskip("IPython.core.ultratb")
    error = raised["coded"]
    shown = ultratb.VerboseTB(theme_name="nocolor", include_vars=False).text(
        type(error), error, error.__traceback__
    )
    assert 'raise Coded(5, detail={"at": 3})' in shown


def test_reads_well_as_a_cause(surfaced):
    """As the cause of a stage's error it stands above it, with its own traceback."""
    error = surfaced["plain"]
    parts = text_of(error).split("\nThe above exception was the direct cause of the following")
    assert [part.count("in plain\n") for part in parts] == [1, 0]
    assert (type(error), error.stage) == (StageError, "decode")


def test_chain(raised, module):
    """Causes and contexts are kept, also beyond one that cannot be sent itself."""
    error = raised["chained"]
    cause = error.__cause__
    assert [type(one) for one in (error, cause, cause.__context__)] == [
        ValueError,
        RemoteError,
        KeyError,
    ]
    assert error.__context__ is cause
    assert text_of(error).count("in chained\n") == 3


def test_suppressed_context(raised):
    """`raise ... from None` still hides what came before."""
    error = raised["suppressed"]
    assert (type(error.__context__), text_of(error).count("KeyError")) == (KeyError, 0)


def test_notes(raised):
    """Notes are kept."""
    assert raised["noted"].__notes__ == ["while reading a.jpg"]


def test_group(raised):
    """A group keeps its members, and its own traceback."""
    group = raised["group"]
    value, inner = group.exceptions
    found = group.message, value.args, type(inner.exceptions[0])
    assert found == ("two of them", ("v",), KeyError)
    assert "in group\n" in text_of(group)


def test_deep_recursion(raised):
    """A traceback of a thousand frames is folded as Python folds it."""
    text = text_of(raised["deep"])
    assert ("[Previous line repeated" in text, len(text.splitlines()) < 30) == (True, True)


# -- nothing goes wrong ----------------------------------------------------------------------------
def test_packing_never_raises(raised):
    """Whatever an exception does when it is looked at, something is sent."""
    error = raised["hostile"]
    assert (type(error), "Hostile" in str(error)) == (RemoteError, True)


@pytest.mark.parametrize("name", ["circle", "circle_beside_dask"])
def test_circles(raised, name):
    """Exceptions that are each other's context, or hold themselves, are no trap.

    Nor is Dask, which has exceptions pickled with their tracebacks and causes.
    """
    if name not in raised:
        pytest.skip("needs Dask")
    back = raised[name]
    found = type(back), back.__context__.__context__ is back, back.me is back
    assert found == (ValueError, True, True)


def test_bounded_chain(raised):
    """Of a very long chain the newest exceptions are sent."""
    back, numbers = raised["long_chain"], []
    while back is not None:
        numbers.append(back.args[0])
        back = back.__context__
    assert numbers == list(range(999, 999 - len(numbers), -1))
    assert 20 < len(numbers) <= 32
