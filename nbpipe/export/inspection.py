"""Inspection: in a fresh process, import a module that was written and see what it is worth."""

from __future__ import annotations

import base64
import builtins
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

from .question import Question, error_line, error_words, portrayed, text_of_line
from .rehearsal import differences


def inspect(question: Question) -> None:
    """Import the module, build its pipeline and run its first items; answer what is found."""
    request = question.request
    module = _checked(question, lambda: _imported(question, request["name"]))
    if module is None:
        return
    os.chdir(question.cwd)
    unknown = [name for name in request["reads"] if not _is_known(module, name)]
    if unknown:
        question.say({"unknown": unknown})
        return
    words = differences(vars(module), request["expected"], named=True)
    if words is not None:
        question.say({"differs": words})
        return
    pipe = _checked(question, module.build_pipeline)
    if pipe is None:
        return
    question.say({"graph": pipe.graph()})
    for address in request["process_stages"]:
        question.say({"stage": address, **_pickled(pipe[address])})
    if request["check_items"]:
        question.step("items")
        _say_items(question, pipe)


def _is_known(module: ModuleType, name: str) -> bool:
    return name in vars(module) or hasattr(builtins, name)


def unpickle(question: Question) -> None:
    """Load what another process pickled; the module is found as there."""
    sys.path.insert(0, question.folder)
    os.chdir(question.cwd)
    for address, data in question.request["pickles"]:
        try:
            pickle.loads(base64.b64decode(data))  # noqa: S301  `inspect` made it
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            question.say({"stage": address, "failed": error_words(error)})


def _file(question: Question) -> str:
    return str(Path(question.folder, f"{question.request['name']}.py"))


def _imported(question: Question, name: str) -> ModuleType:
    """Import it in another folder; where it fails or differs there, it may read the notebook's."""
    sys.path.insert(0, question.folder)
    importlib.invalidate_caches()
    with contextlib.suppress(Exception):
        module = importlib.import_module(name)
        if differences(vars(module), question.request["expected"], named=True) is None:
            return module
    os.chdir(question.cwd)
    sys.modules.pop(name, None)
    module = importlib.import_module(name)
    question.say({"reads": "the working folder"})
    return module


def _checked(question: Question, make: Callable[[], Any]) -> Any:
    """Call user code; where it raises answer that, with the line of the module, and give None."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        line = error_line(error, _file(question))
        text = text_of_line(_file(question), line)
        question.say({"failed": error_words(error), "line": line, "text": text})
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


def _say_items(question: Question, pipe: Any) -> None:
    try:
        with contextlib.closing(iter(pipe)) as items:
            for item in islice(items, question.request["check_items"]):
                question.say({"item": portrayed(item)})
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        question.say({"raised": error_words(error)})
