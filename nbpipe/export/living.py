"""Living: values that belong to one process or one notebook, and can never be written."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any

import numpy as np

from ..tree import is_tensor

_OWN = __name__.partition(".")[0]
_CONNECTION = "open it inside the stage, or in worker_init, instead"
_NOTEBOOK = "take what the stage needs out of it, as plain values"
_WAYS_OUT = {  # by the beginning of module and class
    "_io.": "open it inside the stage instead",
    "socket.": _CONNECTION,
    "_socket.": _CONNECTION,
    "ssl.": _CONNECTION,
    "sqlite3.": _CONNECTION,
    "http.client.": _CONNECTION,
    "subprocess.": "start it inside the stage instead",
    "threading.Thread": "start it inside the stage, or in worker_init, instead",
    "multiprocessing.": "make it inside the stage instead",
    "concurrent.futures.": "make it inside the stage instead",
    "asyncio.": "make it inside the stage instead",
    "tempfile.": "its files end with the notebook: keep them in a folder of their own",
    "mmap.": "open it inside the stage instead",
    "ipywidgets.": f"{_NOTEBOOK}, as widget.value",
    "anywidget.": _NOTEBOOK,
    "traitlets.": _NOTEBOOK,
    "IPython.": _NOTEBOOK,
    "ipykernel.": _NOTEBOOK,
    "distributed.": 'leave it out: executor="dask" takes the client of the process it runs in',
    "tqdm.": "leave the progress bar out: nbpipe.progress() shows one",
    "matplotlib.figure.": "make it inside the stage instead",
    "matplotlib.axes.": "make it inside the stage instead",
    f"{_OWN}.pipeline.": "a stage cannot hold a pipeline: give its items, or join pipelines",
    f"{_OWN}.run.": "a stage cannot hold a run: take what it needs out of it, as plain values",
}
_CONNECTIONS = ("Connection", "Engine", "Session", "Cursor", "Redis", "Client")
# Names that IPython puts into a notebook, and keeps filling.
NOTEBOOK_NAMES = frozenset(
    (
        *("In", "Out", "get_ipython", "display", "exit", "quit", "_", "__", "___"),
        *("_i", "_ii", "_iii", "_ih", "_oh", "_dh", "_exit_code", "_sh"),
    )
)
# Names that every module has.
MODULE_NAMES = frozenset(("__name__", "__doc__", "__file__", "__package__", "__spec__"))


def way_out_of(value: object) -> str | None:
    """Say what to do instead of writing a value that lives in one process; None where it may be.

    Loggers and locks may be written: a module makes its own.
    """
    if isinstance(value, GeneratorType | AsyncGeneratorType | CoroutineType):
        return "write a function that makes it, and call that inside the stage"
    if isinstance(value, FrameType | TracebackType):
        return "leave it out"
    if isinstance(value, io.IOBase):
        return _WAYS_OUT["_io."]
    if is_tensor(value) and value.is_cuda:  # type: ignore[attr-defined]
        return "keep tensor.cpu() in the variable instead"
    for kind in type(value).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        found = next((way for start, way in _WAYS_OUT.items() if name.startswith(start)), None)
        if found is not None and not _is_harmless(name):
            return found
    if type(value).__name__.endswith(_CONNECTIONS) and not isinstance(value, type):
        return _CONNECTION
    if isinstance(value, Iterator | AsyncIterator) and type(value).__module__ == "builtins":
        return "write a function that makes it, or keep a list"
    return None


def _is_harmless(name: str) -> bool:
    return name in ("distributed.lock.Lock", "asyncio.events.Handle")


def kind_of(value: object) -> str:
    """Name a value's type, and the file it belongs to."""
    name = getattr(value, "name", None)
    place = f" on {name!r}" if isinstance(value, io.IOBase) and isinstance(name, str) else ""
    return f"{type(value).__name__}{place}"


def is_generator(value: object) -> bool:
    """Say whether a value draws random numbers: its state moves on as it is used."""
    import random

    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return True
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    return kind is not None and isinstance(value, kind)
