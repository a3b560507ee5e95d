"""route: branches for the values of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..base.checks import Function, function, plain_function
from ..base.knobs import Knob
from ..errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .chain import new_name, refuse_taken
from .stage import Chain, Operation, Runs, Stage, changed, numbered, taken_names


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Route(Operation):
    """Branches by the value of `key(item)`; the stage's inputs are the branches."""

    label: ClassVar[str] = "route"
    runs: ClassVar[Runs] = "route"
    branches: ClassVar[bool] = True
    may_branch: ClassVar[bool] = True
    key: Function
    values: tuple[Any, ...]

    def detail(self) -> str:
        """Return the values."""
        return ", ".join(str(value) for value in self.values)

    @property
    def function(self) -> Function:
        """The user's function, which gives the key."""
        return self.key

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the number of the items before it, where no branch changes that."""
        for inner in (inner for branch in stage.inputs for inner in branch):
            inner.spec.length(inner, 1, length_of)
            if inner.spec.gathers:
                raise LengthUnknownError(
                    f"{inner.name!r} ({inner.op}) gathers what comes to its branch of "
                    f"{stage.name!r}, which may be any number of items"
                )
        return number


def append_route(
    chain: Chain, key: Callable[[Any], Any], branches: Mapping[Any, Chain], name: str | None
) -> Chain:
    """Append a route stage."""
    spec = Route(key=plain_function("route key", key), values=tuple(branches))
    stage_name, named = new_name(chain, "route", None, name)
    taken = {*taken_names(chain), stage_name}
    inputs = tuple(_apart(branch, taken) for branch in branches.values())
    return (*chain, Stage(spec, name=stage_name, named=named, inputs=inputs))


def grown_branches(branches: Any, begin: Callable[[Chain], Any]) -> dict[Any, Chain]:
    """Have the functions of a route add their stages, and check what they give.

    Args:
        branches: for each value a function of a pipeline.
        begin: gives a pipeline of a chain.

    Raises:
        ArgumentError: no dict, an empty one, or a branch with a stage it may not hold.
        ArgumentTypeError: a function returns something else than its pipeline.
    """
    if not isinstance(branches, Mapping) or not branches:
        raise ArgumentError(
            f"route branches must be a dict of at least one value, got {branches!r}; "
            'as {"jpg": lambda chain: chain.map(decode)}'
        )
    found = {}
    for value, grow in branches.items():
        empty = begin(())
        grown = function("route branch", grow)(empty)
        if type(grown) is not type(empty):
            raise ArgumentTypeError(
                "a branch of route must return the chain it was given, with stages added, got "
                f"{type(grown).__name__}"
            )
        found[value] = branch(value, grown.chain)
    return found


def branch(value: object, chain: Chain) -> Chain:
    """Check the chain of one branch of a route, and name its stages `name@value`."""
    for stage in chain:
        spec: Any = stage.spec
        if spec.runs in ("source", "join"):
            raise ArgumentError(
                "a branch of route must add stages to the chain it is given, got a pipeline of "
                'its own; for example {"jpg": lambda chain: chain.map(decode)}'
            )
        if not spec.may_branch:
            raise ArgumentError(
                f"a branch of route may hold {_HOLDS}, got {stage.op}; put {stage.op} before or "
                "after the route"
            )
        if spec.runs == "call" and not spec.ordered:
            raise ArgumentError(
                f"a branch of route must keep the input order, got ordered=False in "
                f"{stage.name!r}; leave it out"
            )
    word = _branch_word(value)
    return with_own_knobs(chain, lambda stage: f"{stage.name}@{word}")


_HOLDS = "map, filter, flat_map, batch, unbatch, window, dedupe and route"


def with_own_knobs(chain: Chain, new_name: Callable[[Stage], str]) -> Chain:
    """Copy stages with knobs of their own; those that share a limit share the copy of it."""
    limits: dict[int, Knob] = {}
    return tuple(_with_own_knobs(stage, new_name, limits) for stage in chain)


def _with_own_knobs(
    stage: Stage, new_name: Callable[[Stage], str], limits: dict[int, Knob]
) -> Stage:
    knobs = {word: knob.value for word, knob in stage.knobs.items()}
    word = "concurrency" if stage.executor_spec is None else stage.executor_spec.limit
    limit = stage.knobs.get(word)
    shared = {} if limit is None or id(limit) not in limits else {word: limits[id(limit)]}
    # In the order of addresses.
    inputs = tuple(with_own_knobs(branch, new_name) for branch in stage.inputs)
    copy = changed(stage, name=new_name(stage), inputs=inputs, shared=shared, **knobs)
    if limit is not None:
        limits[id(limit)] = copy.knobs[word]
    return copy


def _branch_word(value: object) -> str:
    text = str(value).replace("/", "_")
    return "".join(c if c.isprintable() else "_" for c in text)[:40]


def _apart(branch: Chain, taken: set[str]) -> Chain:
    """Rename the stages of a branch whose names are taken: a number for automatic names."""

    def new_name(stage: Stage) -> str:
        if stage.named:
            refuse_taken("route branch", stage.name, taken)
        name = numbered(stage.name, taken)
        taken.add(name)
        return name

    return with_own_knobs(branch, new_name)
