"""Results of workers: each is what the function gave, whatever the next call does to it."""

import dataclasses
import socket

import numpy as np
import pytest

from tests.executors.processes.chain import placed
from tests.gates import drained


@dataclasses.dataclass
class Sample:
    """A sample as users write it."""

    image: object


class Boxed:
    """An object with slots."""

    __slots__ = ("image",)

    def __init__(self, image):
        self.image = image


WRAPPED = {
    "alone": lambda a: a,
    "dict": lambda a: {"a": a},
    "dict in dict": lambda a: {"a": {"x": a}},
    "tuple in tuple": lambda a: ((a, 1), 2),
    "dataclass": Sample,
    "slots": Boxed,
    "long list": lambda a: [*[0] * 70, a],
    "objects": lambda a: np.array([a, None], dtype=object),
    "view": lambda a: {"a": [a[::2]]},
}


def array_in(value):
    """Find the one array of a wrapped value."""
    while not isinstance(value, np.ndarray) or value.dtype == object:
        if isinstance(value, Sample | Boxed):
            value = value.image
        elif isinstance(value, dict):
            value = next(iter(value.values()))
        else:
            value = value[-1] if isinstance(value, list) else value[0]
    return value


def filler(wrap, make=lambda: np.zeros(1000)):
    """Make a function that fills one buffer again and again, and gives it wrapped."""
    buffer = make()

    def fill(n):
        buffer[:] = n
        return wrap(buffer)

    return fill


@pytest.mark.parametrize("size", [10, 1000])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_buffer_that_is_filled_again(name, size):
    """Wherever the array stands in the result, it holds what it held then."""
    fill = filler(WRAPPED[name], lambda: np.zeros(size))
    got = [array_in(one) for one in drained(placed(100, fill))]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(100)]


@pytest.mark.parametrize(
    "options", [{"copy": False}, {"concurrency": 1, "prefetch": 1}, {"ordered": False}]
)
def test_a_buffer_that_is_filled_again_with_options(options):
    """Views, one worker, and results in any order hold what the function gave, too."""
    fill = filler(WRAPPED["dict in dict"])
    got = [array_in(one) for one in drained(placed(100, fill, **options))]
    assert sorted((one.min(), one.max()) for one in got) == [(n, n) for n in range(100)]


@pytest.mark.slow
def test_a_buffer_that_is_filled_again_in_an_isolated_run():
    """The workers of a pipeline that has a process of its own do the same."""
    with placed(100, filler(WRAPPED["tuple in tuple"])).start(isolate=True) as run:
        got = [array_in(one) for one in drained(run)]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(100)]


@pytest.mark.parametrize("name", ["alone", "dict in dict"])
def test_a_generator_that_fills_its_buffer_again(name):
    """Children of one item are drawn several at a time."""

    def split(n):
        buffer = np.zeros(500)
        for k in range(40):
            buffer[:] = 40 * n + k
            yield WRAPPED[name](buffer)

    got = [array_in(one) for one in drained(placed(3, split, "flat_map"))]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(120)]


@pytest.mark.parametrize("name", ["alone", "dict in dict", "dataclass"])
def test_a_batch_of_a_buffer_that_is_filled_again(name):
    """A stage behind it, in threads, gets what each call gave."""
    chain = placed(60, filler(WRAPPED[name])).batch(10, collate=list)
    got = [array_in(one) for batch in drained(chain) for one in batch]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(60)]


# -- An array that is all of a result --------------------------------------------------------------
def frozen(array):
    """Make an array that is read-only."""
    array.flags.writeable = False
    return array


ARRAYS = {
    "bool": lambda: np.arange(6000) % 3 == 0,
    "complex": lambda: np.full((7, 300), 1 + 2j, np.complex64),
    "longdouble": lambda: np.arange(600, dtype=np.longdouble),
    "dates": lambda: np.arange(600).astype("M8[s]"),
    "text": lambda: np.array(["one", "two"] * 300),
    "record": lambda: np.zeros(300, [("a", "i4"), ("b", "f8")]),
    "other byte order": lambda: np.arange(900, dtype=">f4"),
    "with metadata": lambda: np.zeros(600, np.dtype("f8", metadata={"unit": "m"})),
    "columns first": lambda: np.asfortranarray(np.arange(1200.0).reshape(30, 40)),
    "with gaps": lambda: np.arange(1200.0).reshape(30, 40)[::2, ::3],
    "backwards": lambda: np.arange(1200.0)[::-1],
    "redacted_source": lambda: np.ma.masked_less(np.arange(900.0), 30),
    "read-only": lambda: frozen(np.arange(900.0)),
    "none": lambda: np.zeros((0, 5)),
    "one number": lambda: np.array(1.5),
    "objects": lambda: np.array([None, "a"] * 300, object),
}


@pytest.mark.parametrize("copy", [True, False])
def test_an_array_of_any_kind(copy):
    """Its class, dtype, shape, order of axes and values are what the function gave."""
    got = drained(placed(list(ARRAYS), lambda name: ARRAYS[name](), copy=copy))
    for name, array in zip(ARRAYS, got, strict=True):
        made = ARRAYS[name]()
        kinds = [(type(one), one.dtype, one.shape) for one in (array, made)]
        assert kinds[0] == kinds[1], name
        assert array.tolist() == made.tolist(), name
        assert array.flags.fnc == made.flags.fnc, name


@pytest.mark.parametrize("copy", [True, False])
def test_an_array_may_be_written_to(copy):
    """It belongs to the loop: what is written to one shows in no other."""
    got = drained(placed(40, lambda n: np.full(6000, float(n)), copy=copy))
    for array in got:
        array[:] += 1000
    assert [(one.min(), one.max()) for one in got] == [(n + 1000, n + 1000) for n in range(40)]


# -- Objects that stand twice in one result --------------------------------------------------------
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("size", [10, 60_000])
def test_an_array_that_stands_twice(size, copy):
    """It is one array in every item, however large, and another one in each."""

    def twice(n):
        array = np.full(size, float(n))
        return {"a": array, "b": [array], "c": Sample(array)}

    got = drained(placed(40, twice, copy=copy))
    assert [one["a"] is one["b"][0] is one["c"].image for one in got] == [True] * 40
    got[0]["a"][:] = -1
    assert [one["b"][0].max() for one in got] == [-1, *range(1, 40)]


@pytest.fixture
def impatient_sockets():
    """Give new sockets a default timeout."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(7.5)
    yield
    socket.setdefaulttimeout(before)


def test_the_timeout_of_new_sockets(impatient_sockets):
    """Large items come and go whatever timeout a library has given to new sockets."""
    arrays = [np.full(300_000, n) for n in range(20)]
    got = drained(placed(arrays, lambda array: array + 1))
    assert [int(array[0]) for array in got] == [*range(1, 21)]
