"""Stage: frozen but for its knobs; names and addresses."""

import functools
import sys

import pytest

import nbpipe
from nbpipe import KnobError, UnknownKnobError


async def fetch(item):
    """Await nothing."""
    return item


async def many(item):
    """Yield an item."""
    yield item


class Fetcher:
    """An instance that is called as a coroutine function."""

    async def __call__(self, item):
        return item


class SubFetcher(Fetcher):
    """One that inherits it."""


def function_of_coroutine(item):
    """Return a coroutine without being async."""
    return fetch(item)


def stage(**options):
    """Make a stage of a chain."""
    return nbpipe.source([1]).map(abs, **options)["abs"]


def test_knobs_are_attributes():
    """A knob reads and sets as an attribute, and is the same knob under `knobs`."""
    turned = stage(concurrency=2, prefetch=3)
    turned.concurrency = 5
    turned.prefetch = 6
    values = {name: knob.value for name, knob in turned.knobs.items()}
    found = turned.concurrency, turned.prefetch, values
    assert found == (5, 6, {"concurrency": 5, "prefetch": 6})


def test_a_knob_out_of_range_changes_nothing():
    """The message names stage, knob, range and unit."""
    turned = stage(concurrency=2)
    with pytest.raises(KnobError) as caught:
        turned.concurrency = 0
    assert str(caught.value) == "abs.concurrency must be an int in [1, 1024] calls, got 0"
    assert turned.concurrency == 2


@pytest.mark.parametrize("name", ["name", "op", "fn", "executor", "knobs", "spec", "inputs"])
def test_everything_else_is_frozen(name):
    """Structure does not change, neither by setting nor by deleting."""
    frozen = stage()
    before = getattr(frozen, name)
    with pytest.raises(UnknownKnobError) as caught:
        setattr(frozen, name, "other")
    with pytest.raises(UnknownKnobError):
        delattr(frozen, name)
    assert str(caught.value) == (
        f"abs.{name} is frozen; only knobs change: concurrency, prefetch. Build a new pipeline "
        "for another structure"
    )
    assert getattr(frozen, name) == before


def test_knobs_cannot_be_added_or_removed():
    """The mapping of knobs is read-only."""
    with pytest.raises(TypeError):
        stage().knobs["depth"] = 1
    assert set(stage().knobs) == {"concurrency", "prefetch"}


@pytest.mark.parametrize(
    ("made", "name", "words"),
    [
        (stage, "concurency", "no knob 'concurency'; did you mean 'concurrency'? (knobs: "),
        (stage, "x", "stage 'abs' has no knob 'x' (knobs: concurrency, prefetch)"),
        (
            lambda: nbpipe.source([1])["source"],
            "concurrency",
            "stage 'source' has no knob 'concurrency' (knobs: prefetch)",
        ),
        (
            lambda: nbpipe.source([1]).take(1)["take"],
            "prefetch",
            "stage 'take' has no knob 'prefetch' (knobs: this stage has none)",
        ),
        (
            lambda: stage(executor="inline"),
            "concurrency",
            (
                "stage 'abs' has no concurrency: an inline stage runs fused with its neighbour; "
                "set the neighbour's, or use executor='thread'"
            ),
        ),
    ],
)
def test_an_unknown_knob(made, name, words):
    """Reading and setting fail alike, with the names there are."""
    messages = []
    for use in (getattr, functools.partial(setattr)):
        with pytest.raises(AttributeError) as caught:
            use(*((made(), name) if use is getattr else (made(), name, 8)))
        messages.append(str(caught.value))
    assert words in messages[0]
    assert messages[0] == messages[1]


def test_what_a_stage_tells():
    """Name, operation, function and executor are there to read."""
    pipe = nbpipe.source([1]).filter(abs).flat_map(many).route(abs, {1: lambda chain: chain})
    told = [(one.name, one.op, one.fn, one.executor) for one in pipe.stages]
    assert told == [
        ("source", "source", None, "thread"),
        ("abs", "filter", abs, "thread"),
        ("many", "flat_map", many, "coroutine"),
        ("route", "route", abs, "thread"),
    ]


def test_repr_is_one_line():
    """It shows what one wants to know of a stage."""
    assert repr(stage(concurrency=3)) == "Stage('abs', map, thread, concurrency=3, prefetch=8)"


@pytest.mark.parametrize(
    ("operation", "function", "executor"),
    [
        ("map", fetch, "coroutine"),
        ("map", functools.partial(fetch, 1), "coroutine"),
        ("map", Fetcher(), "coroutine"),
        ("map", SubFetcher(), "coroutine"),
        ("map", Fetcher().__call__, "coroutine"),
        ("flat_map", many, "coroutine"),
        ("flat_map", functools.partial(functools.partial(many)), "coroutine"),
        ("map", abs, "thread"),
        ("map", function_of_coroutine, "thread"),
        ("map", Fetcher, "thread"),
    ],
)
def test_what_runs_on_the_event_loop(operation, function, executor):
    """Async functions are known in partials, methods and instances, inherited ones too."""
    made = getattr(nbpipe.source([1]), operation)(function, name="made")
    assert made["made"].executor == executor


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (lambda item, rng: rng, True),
        (lambda item, *, rng=None: rng, True),
        (lambda item, **options: options, False),
        (lambda item: item, False),
        (functools.partial(lambda item, rng: rng, rng=1), True),
        (dict, False),
        (print, False),
    ],
)
def test_who_gets_a_generator(function, wants):
    """A parameter named `rng` asks for one; whatever cannot be looked into does not."""
    (got,) = nbpipe.source([()]).map(function)
    assert ("Generator" in str(got)) == wants


ANNOTATED = """
def numbers() -> Missing:
    return iter(range(3))

def moved(item: Missing, rng: Absent) -> Missing:
    return item + int(rng.integers(1, 2))
"""


def test_names_of_annotations_need_not_be_there():
    """What is imported for a type checker alone is not missed."""
    namespace = {}
    future = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    exec(future + ANNOTATED, namespace)
    pipe = nbpipe.source(namespace["numbers"]).map(namespace["moved"])
    with pipe.start() as run:
        assert list(run) == [1, 2, 3]
