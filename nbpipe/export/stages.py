"""Stages: a chain of live stages becomes the expression that builds it again."""

from __future__ import annotations

import ast
import contextlib
import inspect
from types import FunctionType
from typing import Any, NamedTuple, final

import numpy as np

from .. import operations as ops
from ..devices import Target, ToDevice
from ..draws import Balance, Claim, Sample
from ..executors.pickling import by_reference
from ..stage import Chain as Stages
from ..stage import Stage, addresses, clean_name, numbered
from .arguments import claim_arguments, policy_arguments, quoted, target_of
from .beginnings import shared_beginnings
from .calls import call_of
from .collect import Collector
from .expressions import expression, name_in_module
from .items import items_of
from .model import Chain, Parameter, Step
from .parameters import stage_words
from .places import Place
from .scope import Scope
from .uses import Use, refusal

_ROOT = "root"
_EXECUTORS = {  # what to give instead of an object
    "dask": 'give executor="dask", which takes the client of the process it runs in',
    "executor": 'give executor="thread" or executor="process"',
}


class Draft(NamedTuple):
    """What `build_pipeline` is made of, before the trial.

    Attributes:
        parameters: in the order of the stages.
        locals: shared beginnings of chains, by the name of the variable that holds each.
        chain: what it returns.
    """

    parameters: tuple[Parameter, ...]
    locals: tuple[tuple[str, Chain], ...]
    chain: Chain


def drafted(chain: Stages, collector: Collector, home: Scope) -> Draft:
    """Write a chain, and collect what it uses.

    Args:
        chain: the stages.
        collector: takes what they use.
        home: whose names stand for objects without a namespace of their own.

    Raises:
        ExportError: something cannot be written.
    """
    before = collector.found.copied()
    writer = _Writer(chain, collector, home)
    whole = writer.chain(chain)
    hidden = writer.read & writer.parameters.keys()
    if hidden:  # a parameter would stand before a global variable that the chain reads
        collector.found = before
        writer = _Writer(chain, collector, home, avoid=frozenset(hidden))
        whole = writer.chain(chain)
    parameters = tuple(writer.parameters.values())
    return Draft(parameters, tuple(writer.locals.items()), whole)


@final
class _Writer:
    def __init__(
        self,
        chain: Stages,
        collector: Collector,
        home: Scope,
        *,
        avoid: frozenset[str] = frozenset(),
    ) -> None:
        self._collector, self._home, self._avoid = collector, home, avoid
        self.read: set[str] = set()
        self._addresses = {id(stage): address for address, stage in addresses(chain).items()}
        self._words = stage_words(chain)
        self._shared = shared_beginnings(chain)
        self._known: dict[tuple[int, ...], str] = {}
        self._knobs: dict[int, str] = {}
        self._devices: dict[str, str] = {}
        self.parameters: dict[str, Parameter] = {}
        self.locals: dict[str, Chain] = {}

    # -- chains ---------------------------------------------------------------------------
    def chain(self, stages: Stages, *, whole: bool = False) -> Chain:
        """Write a chain; a beginning that another chain has, too, becomes a local variable."""
        count = 0 if whole else self._shared_length(stages)
        if count:
            head = Chain(self._local(stages[:count]))
        else:
            head = self._head(stages[0])
            count = 1
        names = {stage.name for stage in stages[:count]}
        steps = []
        for number in range(count, len(stages)):
            steps.append(self._step(stages[number], number, names))
            names |= _names(stages[number])
        return Chain(head.head, head.inputs, head.listed, head.arguments, tuple(steps))

    def _shared_length(self, stages: Stages) -> int:
        keys = [tuple(map(id, stages[:count])) for count in range(1, len(stages) + 1)]
        return max((len(key) for key in keys if key in self._shared), default=0)

    def _local(self, stages: Stages) -> str:
        key = tuple(map(id, stages))
        if key not in self._known:
            chain = self.chain(stages, whole=True)
            self._known[key] = name = self._free(self._user_name(stages) or "shared")
            self.locals[name] = chain
        return self._known[key]

    def _user_name(self, stages: Stages) -> str | None:
        """Give the user's variable for a pipeline of these stages."""
        for name, value in self._home.namespace.items():
            chain = getattr(value, "chain", None) if type(value).__name__ == "Pipeline" else None
            taken = name in self._collector.found.owners or not name.isidentifier()
            if isinstance(chain, tuple) and list(map(id, chain)) == list(map(id, stages)):
                return None if taken or name.startswith("_") else name
        return None

    def _free(self, wanted: str) -> str:
        name = wanted
        if wanted in self._collector.found.owners or wanted not in self._home:
            name = self._collector.free_name(wanted)
        self._collector.found.owners[name] = None
        return name

    def _head(self, stage: Stage) -> Chain:
        spec = stage.spec
        if not isinstance(spec, ops.Source):
            inputs = tuple(self.chain(one) for one in stage.inputs)
            listed = isinstance(spec, ops.Mix | ops.Interleave)
            return Chain(f"nbpipe.{stage.op}", inputs, listed, tuple(self._join(stage, spec)))
        tail = [] if stage.name == "source" else [f"name={quoted(stage.name)}"]
        tail += self._knob_arguments(stage)
        if stage.inputs:
            inner = self.chain(stage.inputs[0])
            return Chain("nbpipe.source", (inner,), False, tuple(tail))  # noqa: FBT003
        text = self._items(stage, spec)
        return Chain("nbpipe.source", arguments=(text, *tail))

    def _items(self, stage: Stage, spec: ops.Source) -> str:
        named = _ROOT in self.parameters
        wanted = f"{self._words[id(stage)]}_{_ROOT}" if named else _ROOT
        mark = self._collector.free_name("_items")
        place = self._place(stage, spec.items, "items")
        found = items_of(stage, spec.items, place, wanted=wanted, mark=mark)
        if found.parameter is not None:
            self._add(found.parameter)
            self.read |= _names_in(found.text) - {found.parameter.name}
        if found.check is not None:
            self._collector.found.owners[mark] = None
            self._collector.found.checks[mark] = found.check
        return found.text

    def _join(self, stage: Stage, spec: Any) -> list[str]:
        match spec:
            case ops.Zip(strict=False):
                return ["strict=False"]
            case ops.Mix(weights=weights, seed=seed, stop=stop):
                words = [] if len(set(weights)) == 1 else [self._weights(stage, weights)]
                words.append(f"seed={seed}")
                return words if stop == "longest" else [*words, f"stop={quoted(stop)}"]
            case ops.Interleave(cycle=cycle):
                return [f"cycle={cycle}", *self._knob_arguments(stage)]
        return []

    def _weights(self, stage: Stage, weights: tuple[float, ...]) -> str:
        """Write weights as the user did, where they are numbers in the call."""
        call = call_of(stage, self._home.cells, "mix")
        given = None if call is None else call.argument("weights")
        with contextlib.suppress(ValueError, TypeError, ZeroDivisionError):
            values = [] if given is None else list(ast.literal_eval(given))
            if given is not None and np.allclose(np.divide(values, sum(values)), weights):
                return f"weights={ast.unparse(given)}"
        return f"weights={list(weights)!r}"

    # -- steps ----------------------------------------------------------------------------
    def _step(self, stage: Stage, number: int, names: set[str]) -> Step:
        spec = stage.spec
        if isinstance(spec, ops.Call):
            return Step(stage.op, tuple(self._call(stage, spec, number, names)))
        if isinstance(spec, ops.Route):
            return self._route(stage, spec, names)
        if isinstance(spec, ops.Batch):
            return Step("batch", tuple(self._batch(stage, spec, names)))
        return Step(stage.op, tuple(self._plain(stage, spec)))

    def _call(self, stage: Stage, spec: ops.Call, number: int, names: set[str]) -> list[str]:
        place = self._place(stage, spec.fn, stage.name, stage.op)
        text = self._expression(spec.fn, place)
        found = name_in_module(spec.fn, text, place) or f"{stage.op}_{number}"
        arguments = [text, *self._name(stage, found, names), *self._executor(stage, place)]
        arguments += self._knob_arguments(stage)
        if not spec.ordered:
            arguments.append("ordered=False")
        arguments += policy_arguments(spec.policy)
        if spec.timeout_s is not None:
            arguments.append(f"timeout_s={spec.timeout_s!r}")
        return arguments + self._process_options(stage, place)

    def _name(self, stage: Stage, found: str, names: set[str]) -> list[str]:
        """Give `name=` where the module would call the stage something else."""
        name = stage.name.partition("@")[0]
        same = numbered(clean_name(found), names) == name
        return [] if same and not stage.named else [f"name={quoted(name)}"]

    def _executor(self, stage: Stage, place: Place) -> list[str]:
        if stage.placement is None:
            return ['executor="inline"'] if stage.executor == "inline" else []
        given = stage.placement.given
        if isinstance(given, Target):
            return [f"device={self._device(stage, given)}"]
        if given is None:
            return [f'executor="{stage.placement.executor}"']
        name = self._home.name_of(given)
        what = "its executor" if name is None else f"variable {name!r}"
        raise refusal(
            f"{what} is a live {type(given).__name__}; "
            + _EXECUTORS.get(stage.placement.executor, _EXECUTORS["executor"]),
            place.use,
        )

    def _process_options(self, stage: Stage, place: Place) -> list[str]:
        placement = stage.placement
        if placement is None:
            return []
        given = []
        if placement.worker_init is not None:
            named = f"{stage.name}_init"
            inner = self._place(stage, placement.worker_init, named, stage.op, "worker_init")
            given.append(f"worker_init={self._expression(placement.worker_init, inner)}")
        if placement.max_items_per_worker is not None:
            given.append(f"max_items_per_worker={placement.max_items_per_worker}")
        given += [] if placement.copy else ["copy=False"]
        return given + ([] if placement.region else ["region=False"])

    def _batch(self, stage: Stage, spec: ops.Batch, names: set[str]) -> list[str]:
        name = self._parameter(stage, "size")
        kind = type(spec.size).__name__
        self._add(Parameter(name, kind, repr(spec.size)))
        arguments = [name, *(["drop_last=True"] if spec.drop_last else [])]
        for word in ("collate", "cost"):
            function = getattr(spec, word)
            if function is not None:
                place = self._place(stage, function, f"{stage.name}_{word}", "batch", word)
                arguments.append(f"{word}={self._expression(function, place)}")
        for word in ("names", "dtype", "pad"):
            value = getattr(spec, word)
            if value is not None:
                place = self._place(stage, value, f"{stage.name} {word}")
                arguments.append(f"{word}={self._expression(value, place)}")
        arguments += self._executor(stage, self._place(stage, None, ""))
        arguments += self._knob_arguments(stage)
        return arguments + self._name(stage, "batch", names)

    def _plain(self, stage: Stage, spec: Any) -> list[str]:
        match spec:
            case ops.Window(size=size, stride=stride):
                return [f"{size}", *([] if stride == 1 else [f"stride={stride}"])]
            case ops.Shuffle(seed=seed, buffer_size=buffer):
                held = [] if buffer is None else [f"buffer_size={buffer}"]
                return [f"seed={seed}", *held, *self._knob_arguments(stage)]
            case ops.Shard(rank=rank, world_size=world, tail=tail):
                given = [f"{rank}", f"{world}"] if "rank" in stage.given else []
                return [*given, *([] if tail == "pad" else [f"tail={quoted(tail)}"])]
            case ToDevice():
                target = target_of(stage, self._place(stage, None, "").use)
                return [self._device(stage, target), *self._knob_arguments(stage)]
            case Sample() | Balance():
                return self._drawn(stage, spec)
            case Claim():
                return claim_arguments(stage, spec, self._place(stage, None, "").use)
            case ops.Take(count=count) | ops.Skip(count=count):
                return [f"{count}"]
            case ops.Repeat(times=times):
                return [] if times is None else [f"{times}"]
            case ops.Cache(store=store):
                return [] if store.place == "memory" else [quoted(store.place)]
        return []

    def _device(self, stage: Stage, target: Target) -> str:
        """Give the parameter for a device; stages on one device have one."""
        if target.device not in self._devices:
            self._devices[target.device] = name = self._parameter(stage, "device")
            self._add(Parameter(name, "str", quoted(target.device)))
        return self._devices[target.device]

    def _drawn(self, stage: Stage, spec: Sample | Balance) -> list[str]:
        word = "weights" if isinstance(spec, Sample) else "labels"
        place = self._place(stage, getattr(spec, word), f"{stage.name}_{word}", stage.op, word)
        arguments = [self._expression(getattr(spec, word), place)]
        arguments += [] if spec.n is None else [f"n={spec.n}"]
        if isinstance(spec, Sample) and not spec.replacement:
            arguments.append("replacement=False")
        return [*arguments, f"seed={spec.seed}"]

    def _route(self, stage: Stage, spec: ops.Route, names: set[str]) -> Step:
        place = self._place(stage, spec.key, f"{stage.name}_key", "route")
        key = self._expression(spec.key, place)
        branches = []
        for value, inner in zip(spec.values, stage.inputs, strict=True):
            text = self._expression(value, self._at_home(place))
            known: set[str] = set()
            steps = []
            for number, one in enumerate(inner):
                steps.append(self._step(one, number, known))
                known.add(one.name.partition("@")[0])
            branches.append((text, tuple(steps)))
        return Step("route", (key, *self._name(stage, "route", names)), tuple(branches))

    # -- knobs ----------------------------------------------------------------------------
    def _knob_arguments(self, stage: Stage) -> list[str]:
        """Give the knobs that were given or tuned, as parameters with their values."""
        arguments = []
        for word, knob in stage.knobs.items():
            if id(knob) in self._knobs:  # it is that of the stage whose workers this one shares
                continue
            if word in stage.given or knob.value != knob.default:
                name = self._parameter(stage, word)
                self._knobs[id(knob)] = name
                self._add(Parameter(name, "int", str(knob.value)))
                arguments.append(f"{word}={name}")
        return arguments

    def _parameter(self, stage: Stage, word: str) -> str:
        name = f"{self._words[id(stage)]}_{word}"
        return self._collector.free_name(name) if name in self._avoid else name

    def _expression(self, value: Any, place: Place) -> str:
        """Write a value, and note what its text reads."""
        text = expression(value, place)
        self.read |= _names_in(text)
        return text

    def _add(self, parameter: Parameter) -> None:
        self.parameters[parameter.name] = parameter
        self._collector.found.owners.setdefault(parameter.name, None)

    # -- places ---------------------------------------------------------------------------
    def _address(self, stage: Stage) -> str:
        return self._addresses.get(id(stage), stage.name)

    def _place(
        self, stage: Stage, value: Any, name: str, method: str = "", keyword: str = ""
    ) -> Place:
        scope = self._scope_of(value)
        call = call_of(stage, scope.cells, method) if method else None
        use = Use(f"stage {self._address(stage)!r}")
        return Place(self._collector, scope, use, name, call, keyword)

    def _scope_of(self, value: Any) -> Scope:
        function = inner_function(value)
        if function is None or by_reference(function):
            return self._home
        whole = inspect.unwrap(function)  # a library's decorator has the library's globals
        return self._collector.scope(getattr(whole, "__globals__", function.__globals__))

    def _at_home(self, place: Place) -> Place:
        return Place(self._collector, self._home, place.use, place.name)


def inner_function(value: Any) -> FunctionType | None:
    """Give the function inside a partial or a bound method, or None."""
    while not isinstance(value, FunctionType):
        inner = getattr(value, "func", getattr(value, "__func__", None))
        if inner is None or inner is value:
            return None
        value = inner
    return value


def _names_in(text: str) -> set[str]:
    tree = ast.parse(f"({text}\n)", mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _names(stage: Stage) -> set[str]:
    return {stage.name, *(inner.name for branch in stage.inputs for inner in branch)}
