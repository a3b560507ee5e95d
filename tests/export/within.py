"""Within a kernel, or a process that imports an exported module: what there is, as plain JSON."""

import dataclasses
import datetime as dt
import enum
import importlib
import inspect
import json
import multiprocessing
import os
import pathlib
import pickle
import sys
from pathlib import Path
from typing import Any


def shown(value: Any) -> Any:
    """Write a value as JSON, so that equal values give equal JSON in every process."""
    if value is None or isinstance(value, bool | int | str):
        return [type(value).__name__, value if type(value) in (bool, int, str) else str(value)]
    if isinstance(value, float | complex | bytes | bytearray | dt.date | pathlib.PurePath):
        return [type(value).__name__, repr(value)]
    if isinstance(value, enum.Enum):
        return [type(value).__qualname__, value.name]
    if isinstance(value, dict):
        return [type(value).__name__, [[shown(key), shown(value[key])] for key in value]]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, sorted((shown(one) for one in value), key=json.dumps)]
    if isinstance(value, list | tuple):
        return [type(value).__qualname__, [shown(one) for one in value]]
    if callable(getattr(value, "tobytes", None)) and hasattr(value, "size"):  # also PIL's
        shape = value.shape if hasattr(value, "shape") else value.size
        kind = [type(value).__name__, str(getattr(value, "dtype", ""))]
        return [*kind, list(shape), value.tobytes().hex()]
    if callable(getattr(value, "numpy", None)):
        return [type(value).__name__, str(value.dtype), list(value.shape), value.tolist()]
    if inspect.isroutine(value) or inspect.isclass(value):
        return ["callable", value.__qualname__]
    if dataclasses.is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__qualname__, shown(held)]
    return [type(value).__qualname__, shown(vars(value)) if hasattr(value, "__dict__") else "?"]


def items_of(pipe: Any) -> list[Any]:
    """Give the items of its first epoch."""
    return [shown(item) for item in pipe]


def note(path: str, pipe: Any, report: Any) -> None:
    """Write what a notebook has: the items of its pipeline, its knobs, the report's notes."""
    held = {"items": items_of(pipe), "graph": pipe.graph(), "notes": _notes(report)}
    Path(path).write_text(json.dumps(held), encoding="utf-8")


def _notes(report: Any) -> list[str]:
    return [str(one) for one in getattr(report, "notes", ())]


def audit(path: str) -> None:
    """Write the command lines of all processes that are started from now on."""

    def hook(event: str, arguments: Any) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
            with Path(path).open("a") as file:
                print(repr(arguments[:2]), file=file)

    sys.addaudithook(hook)


def examine(name: str, *, spawn: bool) -> dict[str, Any]:
    """Import a module, build its pipeline, and tell what it is and gives."""
    module = importlib.import_module(name)
    pipe = module.build_pipeline()
    held = {"items": items_of(pipe), "graph": pipe.graph(), "names": sorted(vars(module))}
    held["defaults"] = [shown(one.default) for one in _parameters(module)]
    if spawn:
        held["spawned"] = spawned(pipe)
    return held


def _parameters(module: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(module.build_pipeline).parameters.values())


# -- in spawned processes -----------------------------------------------------------------


def spawned(pipe: Any) -> list[Any]:
    """Pickle every stage's function, call all of them in a spawned process; give its items."""
    source, *stages = pipe.stages
    calls = pickle.dumps([(stage.op, stage.fn) for stage in stages])
    given = source.spec.items
    items = pickle.dumps(list(given() if callable(given) else given))
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
    """Examine the modules named, and write what was found."""
    answer, *modules = sys.argv[1:]
    found = {}
    for entry in modules:
        name, _, spawn = entry.partition(":")
        found[name] = examine(name, spawn=bool(spawn))
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    # The script's own folder must not be needed to import anything.
    sys.path = [path for path in sys.path if Path(path or os.curdir) != Path(__file__).parent]
    main()
