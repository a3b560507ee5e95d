"""Stage: a name, an operation, an executor and knobs. Only the knobs ever change."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, SupportsIndex

from ..base.digest import value_digest
from ..base.knobs import Knob
from ..base.names import meant, parameters_of, shown
from ..errors import (
    ArgumentError,
    LengthUnknownError,
    UnknownKnobError,
    UnknownStageError,
    near_match,
)
from .plan import IndexPlan
from .ranges import NodeState, StatefulOp

# How the engine runs an operation: a source, a call for each item or batch of them, a copy to a
# device, a batch that becomes its items, a join, branches, what is kept and made again, and all
# others, which see the items one by one, in order, and may remember something of them.
Runs = Literal[
    "source", "call", "device", "batch", "unbatch", "join", "route", "cache", "repeat", "stateful"
]


class Operation:
    """What a stage does, as a frozen value; all that others ask of it, it answers itself.

    Attributes:
        label: the word shown in tables.
        runs: how the engine runs it.
        unit: what it hands on, "items" or "batches"; None where that is what it is given.
        gathers: each result is made of several items.
        branches: its inputs are branches of the chain, not chains of their own.
        may_branch: such a branch may hold it.
        uncounted: how many items it gives depends on the items.
        expands: it may give any number of results for one item.
        remembers: what it makes of an item depends on those before it.
        new_order: as `permutes`, where its arguments do not matter.
        positional: arguments of its method that are written without their names.
        derived: fields that are no arguments, but made of them.
        numbers: it puts a number before each item.
        claims: it takes them from a cursor that the ranks share.
        deepens: it puts the number of the input in front of each path.
        in_order: results come in the order of its input.
        chooses: which items it gives, and how often, is not a matter of each by itself.
        permutes: it makes another order of indices (True), or keeps the one before it (False);
            None where it needs the items themselves.
    """

    __slots__ = ()
    label: ClassVar[str]
    runs: ClassVar[Runs] = "stateful"
    unit: ClassVar[Literal["items", "batches"] | None] = None
    gathers: ClassVar[bool] = False
    branches: ClassVar[bool] = False
    may_branch: ClassVar[bool] = False
    uncounted: ClassVar[bool] = False
    expands: ClassVar[bool] = False
    numbers: ClassVar[bool] = False
    new_order: ClassVar[bool | None] = None
    positional: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()
    claims: ClassVar[bool] = False
    deepens: ClassVar[bool] = False
    chooses: ClassVar[bool] = False

    @property
    def permutes(self) -> bool | None:
        """Whether it makes another order of indices."""
        return self.new_order

    @property
    def function(self) -> Any:
        """The user's function, or None."""
        return None

    @property
    def remembers(self) -> bool:
        """Whether what it makes of an item depends on those before it."""
        return False

    @property
    def in_order(self) -> bool:
        """Whether results come in the order of its input."""
        return True

    @property
    def rows(self) -> int | None:
        """How many rows it reads by index now; None where it reads none."""
        return None

    @property
    def max_failures(self) -> int | float | None:
        """How many items may fail in one epoch, or what share of them; None: see its policy."""
        return None

    @property
    def part(self) -> tuple[int, int] | None:
        """Which part of how many, where it gives each rank its own: rank and world size."""
        return None

    @property
    def kept_in(self) -> Any:
        """Where it keeps the items of an epoch for the later ones, or None."""
        return None

    @property
    def may_lose(self) -> bool:
        """Whether items may be missing: how many it gives depends on them, or calls may fail."""
        return self.uncounted

    @property
    def keeps_neighbours(self) -> bool:
        """Whether items that follow one another before it do so after it, as far as is known."""
        return not (self.may_lose or self.expands or self.branches or self.permutes)

    @property
    def varies(self) -> bool:
        """Whether its items or their order are others in each epoch, as far as is known."""
        return bool(self.permutes) or not self.in_order

    @property
    def made_of(self) -> int:
        """How many items each result is made of; 1 where that is not known."""
        return 1

    @property
    def times_given(self) -> float:
        """How often it gives each item that comes to it, pass after pass."""
        return 1

    def detail(self) -> str:
        """Return the arguments worth showing in one short text."""
        return ""

    def arguments(self, given: frozenset[str]) -> list[tuple[str, Any]]:
        """Return what its method is called with: name and value.

        Without what is the default, but for a seed, which a reader should see.

        Args:
            given: arguments that were given, where their values do not tell.
        """
        found = [(part.name, getattr(self, part.name), part.default) for part in _fields(self)]
        return [
            (name, value)
            for name, value, default in found
            if name not in self.derived
            and (name == "seed" or type(value) is not type(default) or value != default)
        ]

    def indexed(self, stage: Stage, plan_of: Callable[[Chain], Any]) -> Any:
        """Return the `Source` that a stage with this operation begins, where it has an index.

        Args:
            stage: the stage, for its inputs.
            plan_of: returns the index order of an input, or None.
        """

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Return what becomes of an index order; None where it needs the items themselves."""
        return None

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return how many items come out of `number` items; infinity where they never end.

        Args:
            stage: the stage, for its name and its inputs.
            number: of the items before it.
            length_of: returns the length of an input.

        Raises:
            LengthUnknownError: that depends on the items.
        """
        if self.uncounted:
            raise LengthUnknownError(f"{stage.name!r} ({stage.op}) may give any number of items")
        return number

    def fingerprint(self) -> dict[str, str]:
        """Return a digest of each argument that its items depend on."""
        return {part.name: value_digest(getattr(self, part.name)) for part in _fields(self)}

    def state_words(self) -> dict[str, Any]:
        """Return what must be the same where an epoch continues, as JSON-ready values."""
        values = {part.name: getattr(self, part.name) for part in _fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in _FREE and _is_plain(value)
        }

    def of_chosen(self) -> Operation | None:
        """Return what it does where some chosen items come again; None where it is left out."""
        return None if self.chooses else self

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Return what runs it for one pass over the stream, where `runs` is "stateful".

        Args:
            epoch: number of the epoch.
            passes: numbers of the passes of repeats around it.
            node_state: where it continues; empty at the beginning.
        """
        raise TypeError(f"{self.label} sees no items in order")


# Arguments that may differ when an epoch continues.
_FREE = ("rank", "world_size", "chunk", "store", "device", "prefetch")
_PLAIN = (bool, int, float, str, type(None))


def _fields(operation: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(operation)


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, _PLAIN) for part in parts)


WORDS = ("process", "dask")  # what `executor=` may say of workers outside the run's threads
WORDS_TEXT = ", ".join(map(repr, WORDS))


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """Where the calls of a stage run: in workers outside the run's threads, or on a device.

    Attributes:
        executor: "process", "dask" or "executor"; "device": threads of the run, one at a time.
        given: the executor object, Dask client or `DaskExecutor`, where one was given; the
            `Target` of a device.
        worker_init: called once in each worker, before its first item.
        max_items_per_worker: a worker is replaced after so many items [items].
        copy: results of which many are kept are copied out of shared memory; False gives views.
        region: neighbours that agree with it are run together, item by item, in one worker.
        follows: set by default, not by `executor=`: shares the workers above where that pays.
    """

    executor: str
    given: object = None
    worker_init: Callable[[], object] | None = None
    max_items_per_worker: int | None = None
    copy: bool = True
    region: bool = True
    follows: bool = False

    @property
    def limit(self) -> str:
        """The knob that stages share where they share workers."""
        return "depth" if self.executor == "device" else "concurrency"

    def joins(self, above: ExecutorSpec) -> bool:
        """Return whether a stage placed here may share the workers of the stage above it."""
        return (
            self.region
            and above.region
            and not above.follows
            and self.executor == above.executor
            and self.given is above.given
            and self.worker_init in (None, above.worker_init)
            and self.max_items_per_worker in (None, above.max_items_per_worker)
        )


def placed(name: str, executor: object) -> tuple[str, object] | None:
    """Return the word and the object of an executor outside the run's threads, or None.

    Raises:
        ArgumentError: a class instead of an object of it.
    """
    if isinstance(executor, str):
        return (executor, None) if executor in WORDS else None
    if isinstance(executor, type):
        raise ArgumentError(
            f"{name} executor must be an executor, got the class {executor.__name__}; "
            f"make one: {executor.__name__}(...)"
        )
    if isinstance(executor, concurrent.futures.Executor):
        return ("executor", executor)
    return ("dask", executor) if _is_dask(executor) else None


def _is_dask(value: object) -> bool:
    distributed: Any = sys.modules.get("distributed")
    client = getattr(distributed, "Client", None)
    if client is not None and isinstance(value, client):
        return True
    return type(value).__name__ == "DaskExecutor" and hasattr(value, "client")


MAX_PREFETCH = 65_536

_MAX_PROCESSES = 256

_KNOBS = {  # of each the greatest value, and the unit
    "concurrency": (1024, "calls"),
    "prefetch": (MAX_PREFETCH, "items"),
    "depth": (16, "batches"),
}

DEPTH = 2  # where not given

LONGEST_NAME = 100  # characters

_OURS_OF_STAGE = {
    "spec",
    "named",
    "executor_spec",
    "inputs",
    "given",
    "made_at",
    "why",
}  # nbpipe's own
_OURS = f"{__name__.partition('.')[0]}."

CONSUMER = "consumer"  # name of the training loop's own row in the stats
LOOP = "training loop"  # what it is called for people

Chain = tuple["Stage", ...]


class CodeLocation(NamedTuple):
    """A place in running code.

    Attributes:
        code: the code.
        offset: of the instruction [bytes].
        namespace: its global variables.
    """

    code: CodeType
    offset: int
    namespace: dict[str, Any]


class Stage:
    """One stage of a pipeline.

    A knob is an attribute: `pipe["decode"].concurrency = 8` sets it. Everything else is frozen.

    Attributes:
        name: name in its chain.
        op: the operation, for example "map".
        fn: the user's function, or None.
        executor: where calls run: "thread", "inline", "coroutine", "process", "dask" or, for any
            other executor, "executor"; "device": on a device, one at a time.
        executor_spec: the workers outside the run's threads, or None.
        knobs: the knobs by name.
        spec: the operation with its arguments.
        inputs: chains that this stage joins or, for `route`, its branches.
        given: names of arguments that the call gave although their values do not show it, for
            example knobs.
        made_at: where in the user's code it was made, or None.
        why: why it runs where it runs, if nbpipe decided that; else empty.

    Examples:
        >>> import nbpipe
        >>> stage = nbpipe.source(range(3)).map(abs)["abs"]
        >>> stage.concurrency = 4
        >>> stage
        Stage('abs', map, thread, concurrency=4, prefetch=8)
    """

    __slots__ = (
        "executor",
        "executor_spec",
        "given",
        "inputs",
        "knobs",
        "made_at",
        "name",
        "named",
        "spec",
        "why",
    )  # fmt: skip

    name: str
    named: bool
    executor: str
    executor_spec: ExecutorSpec | None
    spec: Operation
    inputs: tuple[Chain, ...]
    knobs: Mapping[str, Knob]
    given: frozenset[str]
    made_at: CodeLocation | None
    why: str

    def __init__(
        self,
        spec: Operation,
        *,
        name: str,
        named: bool = False,
        executor: str = "thread",
        concurrency: int | None = None,
        prefetch: int | None = None,
        depth: int | None = None,
        inputs: tuple[Chain, ...] = (),
        executor_spec: ExecutorSpec | None = None,
        shared: Mapping[str, Knob] | None = None,
        given: frozenset[str] = frozenset(),
        made_at: CodeLocation | None = None,
        why: str = "",
        unit: str = "items",  # of its inputs; its prefetch counts its results
    ) -> None:
        knobs: dict[str, Knob] = dict(shared or {})
        executor = executor_spec.executor if executor_spec else executor
        wanted = {"concurrency": concurrency, "prefetch": prefetch, "depth": depth}
        for word, value in wanted.items():
            if value is not None and word not in knobs:
                knobs[word] = new_knob(name, word, value, executor, spec.unit or unit)
        put = functools.partial(object.__setattr__, self)
        put("spec", spec)
        put("name", name)
        put("named", named)
        put("executor", executor)
        put("executor_spec", executor_spec)
        put("inputs", inputs)
        put("knobs", MappingProxyType(knobs))
        put("given", given)
        put("made_at", made_at or _user_code())
        put("why", why)

    @property
    def op(self) -> str:
        """The operation, for example "map"."""
        return self.spec.label

    @property
    def fn(self) -> Any:
        """The user's function, or None."""
        return self.spec.function

    @property
    def concurrency(self) -> int:
        """Calls that may be in progress at once [calls]."""
        return self.knob("concurrency").value

    @concurrency.setter
    def concurrency(self, value: SupportsIndex) -> None:
        self.knob("concurrency").set(value)

    @property
    def prefetch(self) -> int:
        """Results this stage may hold ready beyond one for each running call [items, batches]."""
        return self.knob("prefetch").value

    @prefetch.setter
    def prefetch(self, value: SupportsIndex) -> None:
        self.knob("prefetch").set(value)

    @property
    def depth(self) -> int:
        """Batches that may be held ready on the device [batches]."""
        return self.knob("depth").value

    @depth.setter
    def depth(self, value: SupportsIndex) -> None:
        self.knob("depth").set(value)

    def knob(self, name: str) -> Knob:
        """Return the knob of this name.

        Args:
            name: "concurrency", "prefetch" or "depth".

        Returns:
            The knob.

        Raises:
            UnknownKnobError: this stage has no such knob.

        Examples:
            >>> import nbpipe
            >>> nbpipe.source(range(3))["source"].knob("prefetch")
            Knob(source.prefetch=16, 1..65536 items)
        """
        found = self.knobs.get(name)
        if found is None:
            raise UnknownKnobError(self._no_knob(name))
        return found

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("concurrency", "prefetch", "depth"):
            object.__setattr__(self, name, value)
        elif name in (*self.__slots__, "op", "fn"):
            raise UnknownKnobError(
                f"{self.name}.{name} is frozen; only knobs change: {self._knob_words()}. "
                "Build a new pipeline for another structure"
            )
        else:
            raise UnknownKnobError(self._no_knob(name))

    def __delattr__(self, name: str) -> None:
        raise UnknownKnobError(f"{self.name}.{name} is frozen; only knobs change")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownKnobError(self._no_knob(name))

    def __dir__(self) -> list[str]:
        others = {"concurrency", "prefetch", "depth"} - set(self.knobs)
        return shown(self, _OURS_OF_STAGE | others)

    def _knob_words(self) -> str:
        return ", ".join(self.knobs) or "this stage has none"

    def _no_knob(self, name: str) -> str:
        if self.executor == "inline" and name in ("concurrency", "prefetch"):
            return (
                f"stage {self.name!r} has no {name}: an inline stage runs fused with its "
                "neighbour; set the neighbour's, or use executor='thread'"
            )
        if self.executor == "device" and name in ("concurrency", "prefetch"):
            return (
                f"stage {self.name!r} has no {name}: calls on a device run one after the other; "
                "set depth, the batches held ready there"
            )
        return (
            f"stage {self.name!r} has no knob {name!r}{meant(name, self.knobs)} "
            f"(knobs: {self._knob_words()})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process, with its knobs as they were made."""
        executor_spec = self.executor_spec
        if executor_spec is not None and executor_spec.executor == "dask":
            from ..executors.dask import dask_executor_of

            executor_spec = dataclasses.replace(
                executor_spec, given=dask_executor_of(executor_spec.given or "dask")
            )
        kept = ("spec", "name", "named", "executor", "why")
        about = {name: getattr(self, name) for name in kept}
        about |= {"inputs": self.inputs, "executor_spec": executor_spec, "shared": dict(self.knobs)}
        return _made, (about,)

    def __repr__(self) -> str:
        knobs = "".join(f", {name}={knob.value}" for name, knob in self.knobs.items())
        return f"Stage({self.name!r}, {self.op}, {self.executor}{knobs})"


def _made(about: dict[str, Any]) -> Stage:
    return Stage(**about)


def changed(stage: Stage, **parts: Any) -> Stage:
    """Return a stage with other parts; what is not given it has in common, its knobs too.

    Args:
        stage: as it was.
        parts: arguments of `Stage`.
    """
    kept = {name: getattr(stage, name) for name in Stage.__slots__ if name != "knobs"}
    return Stage(**{**kept, "shared": stage.knobs, **parts})


def _user_code() -> CodeLocation | None:
    """Return the innermost code that is under way and not ours."""
    frame = _user_frame()
    return None if frame is None else CodeLocation(frame.f_code, frame.f_lasti, frame.f_globals)


def user_line() -> tuple[str, int]:
    """Return the file and the line of that code; an empty name and 0 where there is none."""
    frame = _user_frame()
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    return frame


def given(**arguments: object) -> frozenset[str]:
    """Return the names of the arguments that are not None."""
    return frozenset(name for name, value in arguments.items() if value is not None)


def new_knob(stage: str, word: str, value: int, executor: str, held: str = "items") -> Knob:
    """Make the knob of a stage that has this word, and holds items or batches."""
    most, unit = _KNOBS[word]
    unit = held if word == "prefetch" else unit
    if word == "concurrency" and executor == "process":
        most = _MAX_PROCESSES
    return Knob(f"{stage}.{word}", value, minimum=1, maximum=most, unit=unit)


def has_device(chain: Chain) -> bool:
    """Return whether a chain ends on a device."""
    return bool(chain) and chain[-1].executor == "device"


def addresses(chain: Chain) -> dict[str, Stage]:
    """Return every stage of a chain under the name it is called by.

    A name that occurs once is enough; where names clash between joined pipelines, each is
    addressed with its pipeline's place, as "0/decode".
    """
    book = address_book(chain)
    return {book[place + stage.name]: stage for place, stage in _walk(chain, "")}


def stage_at(known: Mapping[str, Stage], address: str, whose: str) -> Stage:
    """Return the stage at an address.

    Raises:
        UnknownStageError: there is none; the message names those there are.
    """
    stage = known.get(address)
    if stage is None:
        raise UnknownStageError(
            f"no stage {address!r}{near_match(str(address), known)}; this {whose} has "
            + ", ".join(map(repr, known))
        )
    return stage


def address_book(chain: Chain) -> dict[str, str]:
    """Return the address of every stage, by its full place, as "0/decode"."""
    found = list(_walk(chain, ""))
    counts: dict[str, int] = {}
    for _, stage in found:
        counts[stage.name] = counts.get(stage.name, 0) + 1
    return {
        place + stage.name: stage.name if counts[stage.name] == 1 else place + stage.name
        for place, stage in found
    }


def _walk(chain: Chain, place: str) -> Iterator[tuple[str, Stage]]:
    for stage in chain:
        branches = stage.spec.branches
        for number, inner in enumerate(stage.inputs):
            yield from _walk(inner, place if branches else f"{place}{number}/")
        yield place, stage


def auto_name(fn: object, label: str, place: int) -> str:
    """Name a stage after its function.

    A `partial` gives the function inside, a bound method the method, an instance its class in
    snake case; a lambda gives the operation and the place in the chain.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str):
        name = class_name(fn)
    return f"{label}_{place}" if name in ("", "<lambda>") else name


def clean_name(name: str) -> str:
    """Return an automatic name without what no name may hold."""
    return "".join(c if c.isprintable() and c != "/" else "_" for c in name)[:LONGEST_NAME]


def numbered(name: str, taken: Container[str]) -> str:
    """Return an automatic name, with a number where it is taken."""
    found, number = name, 2
    while found in taken or found == CONSUMER:
        found, number = f"{name}_{number}", number + 1
    return found


def taken_names(chain: Chain) -> set[str]:
    """Return the names of a chain, those in the branches of its routes included."""
    found = {stage.name for stage in chain}
    routes = (stage for stage in chain if stage.spec.branches)
    return found.union(*(taken_names(branch) for stage in routes for branch in stage.inputs))


def class_name(value: object) -> str:
    """Return the name of a value's class in snake case."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(value).__name__)
    return words.lower()


def wants_rng(fn: object) -> bool:
    """Return whether a function has a parameter named `rng`."""
    try:
        parameters = parameters_of(fn)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    rng = parameters.get("rng")
    return rng is not None and rng.kind in (rng.POSITIONAL_OR_KEYWORD, rng.KEYWORD_ONLY)


def share_workers(above: Stage, below: Stage) -> bool:
    """Return whether two neighbours belong to one region: they share one limit."""
    if above.executor_spec is None or below.executor_spec is None:
        return False
    word = above.executor_spec.limit
    limit = above.knobs.get(word)
    return limit is not None and limit is below.knobs.get(word)


def regions_of(chain: Sequence[Stage]) -> list[list[Stage]]:
    """Part a chain into regions; a stage that shares no workers is alone."""
    groups: list[list[Stage]] = []
    for stage in chain:
        if groups and share_workers(groups[-1][-1], stage):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups
