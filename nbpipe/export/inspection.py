"""Inspection: in a fresh process, import a module that was written and see what it is worth."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from .probe import Probe, error_line, error_words, portrayed, text_of_line
from .rehearsal import differences


def inspect(probe: Probe) -> None:
    """Import the module, build its pipeline and run its first items; answer what is found."""
    request = probe.request
    module = _checked(probe, lambda: _imported(probe, request["name"]))
    if module is None:
        return
    os.chdir(probe.cwd)
    words = differences(vars(module), request["expected"], named=True)
    if words is not None:
        probe.say({"failed": words, "line": None, "text": ""})
        return
    pipe = _checked(probe, module.build_pipeline)
    if pipe is None:
        return
    probe.say({"graph": pipe.graph()})
    for address in request["process_stages"]:
        probe.say({"stage": address, **_pickled(pipe[address])})
    if request["check_items"]:
        probe.step("items")
        _say_items(probe, pipe)


def unpickle(probe: Probe) -> None:
    """Load what another process pickled; the module is found as there."""
    sys.path.insert(0, probe.folder)
    os.chdir(probe.cwd)
    for address, data in probe.request["pickles"]:
        try:
            pickle.loads(base64.b64decode(data))  # noqa: S301  `inspect` made it
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            probe.say({"stage": address, "failed": error_words(error)})


def _file(probe: Probe) -> str:
    return str(Path(probe.folder, f"{probe.request['name']}.py"))


def _imported(probe: Probe, name: str) -> ModuleType:
    sys.path.insert(0, probe.folder)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _checked(probe: Probe, make: Callable[[], Any]) -> Any:
    """Call user code; where it raises answer that, with the line of the module, and give None."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        line = error_line(error, _file(probe))
        text = text_of_line(_file(probe), line)
        probe.say({"failed": error_words(error), "line": line, "text": text})
        return None


def _functions(stage: Any) -> Iterator[Any]:
    """Give what workers of a stage are sent."""
    for function in (
        stage.fn,
        getattr(stage.spec, "collate", None),
        getattr(stage.spec, "cost", None),
        getattr(stage.placement, "worker_init", None),
    ):
        if function is not None:
            yield function


def _pickled(stage: Any) -> dict[str, Any]:
    """Pickle the functions of a stage with plain pickle, which sends them by name."""
    try:
        data = pickle.dumps(list(_functions(stage)))
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        return {"failed": error_words(error)}
    return {"pickle": base64.b64encode(data).decode("ascii")}


def _say_items(probe: Probe, pipe: Any) -> None:
    try:
        with contextlib.closing(iter(pipe)) as items:
            for item in islice(items, probe.request["check_items"]):
                probe.say({"item": portrayed(item)})
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        probe.say({"raised": error_words(error)})
