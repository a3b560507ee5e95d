"""Living: values that belong to one process or one notebook, and can never be written."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..executors.pickling import TooLargeError, pickled_bytes
from ..tree import is_tensor
from .objects import is_library

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
    "requests.sessions.": _CONNECTION,
    "boto3.": _CONNECTION,
    "h5py.": _CONNECTION,
    "zipfile.ZipFile": _CONNECTION,
    "zipfile.Path": _CONNECTION,
    "zipfile._path.Path": _CONNECTION,
    "tarfile.TarFile": _CONNECTION,
    "shelve.Shelf": _CONNECTION,
    "logging.FileHandler": _CONNECTION,
    "_csv.": _CONNECTION,
    "csv.DictReader": _CONNECTION,
    "csv.DictWriter": _CONNECTION,
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
# What the system opened, wherever it is.
_OPENED = ("socket.", "_socket.", "ssl.", "sqlite3.", "mmap.", "subprocess.", "zipfile.ZipFile")
_CLOSING = ("close", "dispose")
_KINDS: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()
_MOST_BYTES = 1 << 20  # that are pickled to see whether a value can be
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
    found = _way_out_of_kind(type(value))
    if found is not None:
        return found
    if _is_connection(value):
        return _CONNECTION
    if isinstance(value, Iterator | AsyncIterator) and type(value).__module__ == "builtins":
        return "write a function that makes it, or keep a list"
    return None


def _way_out_of_kind(kind: type) -> str | None:
    if kind not in _KINDS:
        names = (f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__)
        kept = [name for name in names if not _is_harmless(name)]
        ways = (way for name in kept for start, way in _WAYS_OUT.items() if name.startswith(start))
        _KINDS[kind] = next(ways, None)
    return _KINDS[kind]


def is_handle(value: object) -> bool:
    """Tell whether a value is what the system opened: a file, a socket, a process."""
    if isinstance(value, io.IOBase):
        return not isinstance(value, io.BytesIO | io.StringIO)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    return any(name.startswith(_OPENED) for name in names)


def _is_connection(value: object) -> bool:
    """Tell whether a library's object is to be closed, and cannot be sent to another process.

    Parsers are closed, too, and may be made anew.
    """
    kind = type(value)
    if isinstance(value, type) or not is_library(kind.__module__) or _is_local(kind):
        return False
    if not any(callable(getattr(kind, name, None)) for name in _CLOSING) or hasattr(kind, "feed"):
        return False
    try:
        pickled_bytes(value, _MOST_BYTES)
    except TooLargeError:
        return False
    except Exception:  # noqa: BLE001  whatever a library raises
        return True
    return False


def _is_local(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in (_OWN, "logging", "threading")


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
