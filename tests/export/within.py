"""Within a kernel, or a process that imports an exported module: what there is, as plain JSON."""

import dataclasses
import datetime as dt
import enum
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import pathlib
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

STATE: set[str] = set()  # what stages change, attributes and captured names: not compared
_DEEPEST = 12  # an object may hold itself


def shown(value: Any, depth: int = 0) -> Any:
    """Write a value as JSON, so that equal values give equal JSON in every process."""
    again = functools.partial(shown, depth=depth + 1)
    if depth > _DEEPEST:
        return "..."
    if value is None or isinstance(value, bool | int | str):
        return [type(value).__name__, value if type(value) in (bool, int, str) else str(value)]
    if isinstance(value, float | complex | bytes | bytearray | dt.date | pathlib.PurePath):
        return [type(value).__name__, repr(value)]
    if isinstance(value, enum.Enum):
        return [type(value).__qualname__, value.name]
    if isinstance(value, dict):
        return [type(value).__name__, [[again(key), again(value[key])] for key in value]]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, sorted((again(one) for one in value), key=json.dumps)]
    if isinstance(value, list | tuple):
        return [type(value).__qualname__, [again(one) for one in value]]
    if callable(getattr(value, "tobytes", None)) and hasattr(value, "size"):  # also PIL's
        shape = value.shape if hasattr(value, "shape") else value.size
        kind = [type(value).__name__, str(getattr(value, "dtype", ""))]
        return [*kind, list(shape), value.tobytes().hex()]
    if callable(getattr(value, "numpy", None)):
        return [type(value).__name__, str(value.dtype), list(value.shape), value.tolist()]
    if inspect.isroutine(value) or inspect.isclass(value):
        return ["callable", value.__qualname__]
    if type(value).__module__ in ("weakref", "threading", "functools"):
        return [type(value).__qualname__]  # what it holds is another one in each process
    if dataclasses.is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        held = dict(getattr(value, "__dict__", {"?": ""}))
    return [type(value).__qualname__, [[k, again(v)] for k, v in held.items() if k not in STATE]]


# -- what each stage was given ---------------------------------------------------------------------
def specs_of(pipe: Any) -> dict[str, Any]:
    """Give by address all that each stage was given, its knobs left out."""
    return {address: _spec(stage) for address, stage in stages_of(pipe).items()}


def stages_of(pipe: Any) -> dict[str, Any]:
    """Give the stages by their addresses, those of joined pipelines and branches included."""
    return dict(zip(pipe._ipython_key_completions_(), pipe.stages, strict=True))


def _spec(stage: Any) -> dict[str, Any]:
    spec = {part.name: getattr(stage.spec, part.name) for part in dataclasses.fields(stage.spec)}
    if stage.executor_spec is not None:
        place = stage.executor_spec
        spec["worker_init"], spec["copy"] = place.worker_init, place.copy
        spec["max_items_per_worker"] = place.max_items_per_worker
    given = {name: _given(value) for name, value in spec.items()}
    return {**given, "inputs": [len(chain) for chain in stage.inputs]}


def _given(value: Any) -> Any:
    if callable(value) and not inspect.isclass(value):
        return sorted(_held_by(value, frozenset()), key=json.dumps)
    return shown(value)


def _held_by(value: Any, seen: frozenset[int]) -> Iterator[Any]:
    """Give the values that a function holds, whether it is a closure, a partial or a method.

    The function itself is compared by the items that it makes.
    """
    again = functools.partial(_held_by, seen=seen | {id(value)})
    held: list[Any] = []
    if id(value) in seen:
        return
    if isinstance(value, functools.partial):
        held = [value.func, *value.args, *value.keywords.values()]
    elif inspect.ismethod(value):
        held = [value.__func__, value.__self__]
    elif inspect.isfunction(value):
        captured = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        cells = [cell.cell_contents for name, cell in captured if name not in STATE]
        held = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        yield from map(shown, _constants(value.__code__))
    elif hasattr(value, "__wrapped__"):  # by functools.cache, for instance
        held = [value.__wrapped__]
    else:
        yield shown(value)
    for one in held:
        yield from again(one)


def _constants(code: types.CodeType) -> Iterator[Any]:
    """Give the numbers, texts and bytes in a function's code, without its docstring."""
    for at, value in enumerate(code.co_consts):
        if isinstance(value, types.CodeType):
            yield from _constants(value)
        elif isinstance(value, str) and at == 0:
            continue  # the docstring, if there is one
        elif isinstance(value, int | float | complex | bytes | str):
            yield value


def knobs_of(pipe: Any) -> dict[str, Any]:
    """Give the value of every knob, and the size of every batch, by "address.knob"."""
    found: dict[str, Any] = {}
    for address, stage in stages_of(pipe).items():
        found |= {f"{address}.{name}": knob.value for name, knob in stage.knobs.items()}
        if stage.op == "batch":
            found[f"{address}.size"] = stage.spec.size
    return found


def given_knobs(pipe: Any) -> list[str]:
    """Name the knobs that were given, or have another value than they began with."""
    return [
        f"{address}.{name}"
        for address, stage in stages_of(pipe).items()
        for name, knob in stage.knobs.items()
        if name in stage.given or knob.value != knob.default
    ]


def turned_by(build: Any) -> dict[str, list[str]]:
    """Give by parameter of `build_pipeline` what it turns: "address.knob"."""
    before = knobs_of(build())
    found = {}
    for name, one in inspect.signature(build).parameters.items():
        if isinstance(one.default, int | float) and not isinstance(one.default, bool):
            after = knobs_of(build(**{name: one.default + 1}))
            found[name] = [key for key in after if after[key] != before.get(key)]
    return found


# -- what a notebook and a module have -------------------------------------------------------------
def items_of(pipe: Any) -> list[Any]:
    """Give the items of its first epoch."""
    return [shown(item) for item in pipe]


def note(path: str, pipe: Any, report: Any, state: Sequence[str] = ()) -> None:
    """Write what a notebook has: what its pipeline is and gives, the report's notes."""
    held = {**_described(pipe, state), "given": given_knobs(pipe), "notes": _notes(report)}
    Path(path).write_text(json.dumps(held), encoding="utf-8")


def _described(pipe: Any, state: Sequence[str]) -> dict[str, Any]:
    STATE.clear()
    STATE.update(state)
    found = {"graph": pipe.graph(), "specs": specs_of(pipe), "knobs": knobs_of(pipe)}
    return {**found, "items": items_of(pipe)}


def _notes(report: Any) -> list[str]:
    return [str(one) for one in getattr(report, "notes", ())]


def audit(path: str) -> None:
    """Write the command lines of all processes that are started from now on."""

    def hook(event: str, arguments: Any) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
            with Path(path).open("a") as file:
                print(repr(arguments[:2]), file=file)

    sys.addaudithook(hook)


def examine(name: str, folder: str, *, spawn: bool, state: Sequence[str]) -> dict[str, Any]:
    """Import a module from an empty folder, build its pipeline in `folder`, and describe it."""
    module = importlib.import_module(name)
    os.chdir(folder)
    build = module.build_pipeline
    turned = turned_by(build)
    defaults = {key: one.default for key, one in inspect.signature(build).parameters.items()}
    pipe = build()
    held = _described(pipe, state)
    held["names"] = sorted(vars(module))
    held |= {"turned": turned, "defaults": {key: shown(one) for key, one in defaults.items()}}
    if spawn:
        held["spawned"] = spawned(pipe)
    return held


# -- in spawned processes --------------------------------------------------------------------------


def spawned(pipe: Any) -> list[Any]:
    """Send every stage's function to a spawned process, as nbpipe does; give its items."""
    source, *stages = pipe.stages
    calls = cloudpickle.dumps([(stage.op, stage.fn) for stage in stages])
    given = source.spec.items
    items = cloudpickle.dumps(list(given() if callable(given) else given))
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    worker = context.Process(target=called, args=(calls, items, far))
    worker.start()
    far.close()
    results = near.recv()
    worker.join()
    return results


def called(calls: bytes, items: bytes, answer: Any) -> None:
    """Call functions on items, one after the other, and send what they give."""
    held = pickle.loads(items)
    for op, function in pickle.loads(calls):
        if op == "filter":
            held = [item for item in held if function(item)]
        elif op == "flat_map":
            held = [child for item in held for child in function(item)]
        else:
            held = [function(item) for item in held]
    answer.send([shown(item) for item in held])


def main() -> None:
    """Examine the module named, and write what was found."""
    answer, request = sys.argv[1:]
    Path(answer).write_text(json.dumps(examine(**json.loads(request))), encoding="utf-8")


if __name__ == "__main__":
    # The script's own folder must not be needed to import anything.
    sys.path = [path for path in sys.path if Path(path or os.curdir) != Path(__file__).parent]
    main()
