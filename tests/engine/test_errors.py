"""The error tree, and what a StageError tells."""

import inspect
import re
from dataclasses import dataclass

import pytest

import nbpipe
from nbpipe import MissingExtraError, NbpipeError, StageError, errors
from nbpipe.errors import near_match

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, NbpipeError) and kind.__module__ == errors.__name__
]
CLASS = re.compile(r"(\w+Error)(?: \((\w+)\))?")


def drawn_tree():
    """Read the tree in the docstring: for each class its base in the tree and its builtin base."""
    found, stack = {}, []
    for line in (errors.__doc__ or "").splitlines():
        match = CLASS.search(line)
        if match is None or line.strip().startswith("Every"):
            continue
        while stack and stack[-1][0] >= match.start():
            stack.pop()
        found[match[1]] = (stack[-1][1] if stack else None, match[2])
        stack.append((match.start(), match[1]))
    return found


def test_the_tree_is_drawn_in_the_docstring():
    """Every class stands in the picture, below its base, with its builtin base."""
    tree = drawn_tree()
    real = {}
    for kind in KINDS:
        bases = [base.__name__ for base in kind.__bases__]
        own = [name for name in bases if name in tree]
        builtin = [name for name in bases if name not in (*tree, "Exception")]
        real[kind.__name__] = (own[0] if own else None, builtin[0] if builtin else None)
    assert tree == real


def test_every_error_is_exported():
    """Whoever catches one can name it."""
    assert {kind.__name__ for kind in KINDS} <= set(nbpipe.__all__)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit, ValueError])
def test_failures_inside_generators(kind):
    """What a generator raises between two items is a failure, at the item it was given."""

    def draw(item):
        yield item
        raise kind

    async def draw_async(item):
        yield item
        raise kind

    ends = []
    for function in (draw, draw_async):
        got = []
        with pytest.raises(StageError) as caught:
            got.extend(nbpipe.source([7]).flat_map(function))
        ends.append((got, caught.value.path))
    assert ends == [([7], 0), ([7], 0)]


def test_nested_deliberate_errors_keep_their_message():
    """An error of nbpipe inside a stage reads like any other."""

    def inner(item):
        return len(nbpipe.source(range(3)).filter(bool))

    with pytest.raises(StageError, match=r"failed on item 0: .*LengthUnknownError: 'bool'"):
        list(nbpipe.source([1]).map(inner))


def test_a_missing_extra_names_the_line_to_type():
    """The pip line uses the name of the distribution."""
    error = MissingExtraError.of("plotly", "jupyter", "run.plot()")
    assert str(error) == (
        "run.plot() needs plotly, which is not installed; type: pip install "
        "'jupyter-nbpipe[jupyter]'"
    )


@pytest.mark.parametrize(
    ("name", "found"), [("decod", "; did you mean 'decode'?"), ("xyz", ""), ("", "")]
)
def test_near_match(name, found):
    """Only a name that is near is offered."""
    assert near_match(name, ["decode", "files"]) == found


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception whose attributes cannot be set."""

    code: int


def refuse(item):
    """Fail on every item."""
    raise FrozenError(item)


@pytest.mark.parametrize("place", ["thread", "process", "isolated"])
def test_an_exception_whose_attributes_cannot_be_set(place):
    """It is the cause, wherever it was raised, and a notebook shows it and leaves it as it is."""
    executor = "process" if place == "process" else "thread"
    pipe = nbpipe.source([7]).map(refuse, executor=executor)
    with pipe.start(isolate=place == "isolated") as run, pytest.raises(StageError) as caught:
        list(run)
    error = caught.value
    lines = "".join(error._render_traceback_())
    assert (error.stage, error.__cause__) == ("refuse", FrozenError(7))
    assert ("raise FrozenError(item)" in lines, error.__suppress_context__) == (True, True)
