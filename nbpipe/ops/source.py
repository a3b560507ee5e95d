"""source: where items come from."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

from ..base.checks import as_int, refuse_table
from ..base.digest import source_digest
from ..base.format import shortened
from ..base.names import parameters_of
from ..errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .index import rows_of
from .plan import IndexPlan
from .stage import Chain, Operation, Runs, Stage


# Neither compared nor printed: fewer generated methods make the import 10 ms shorter.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(Operation):
    """Where items come from; `plan` where they are read by index.

    The source that is another pipeline has it as the input of its stage.
    """

    label: ClassVar[str] = "source"
    runs: ClassVar[Runs] = "source"
    items: Any
    plan: IndexPlan | None = None

    def detail(self) -> str:
        """Name the kind of source."""
        return "pipeline" if self.items is None else type(self.items).__name__

    def indexed(self, stage: Stage, plan_of: Callable[[Chain], Any]) -> Source | None:
        """Return itself, where it is read by index."""
        return self if self.plan is not None else None

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the length of the items, or of the pipeline that they come from."""
        if stage.inputs:
            return length_of(stage.inputs[0])
        try:
            return rows_of(self.items)
        except LengthUnknownError:
            raise
        except (TypeError, ArgumentError):
            if self.plan is not None:  # too long to be read by index
                raise
            raise LengthUnknownError(
                f"source {stage.name!r} ({type(self.items).__name__}) has no length"
            ) from None

    def fingerprint(self) -> dict[str, str]:
        """Return a digest of the items."""
        return {"items": source_digest(self.items)}

    def state_words(self) -> dict[str, Any]:
        """Return nothing: the number of the items is compared by itself."""
        return {}

    @property
    def varies(self) -> bool:
        """Whether it hears which epoch it is."""
        return hasattr(self.items, "set_epoch")

    @property
    def rows(self) -> int | None:
        """How many items there are now, where they are read by index."""
        return None if self.plan is None else rows_of(self.items)


def source_of(items: Any) -> Source:
    """Return the source of some items, with an order of indices where they have one.

    Raises:
        ArgumentError: a range of too many numbers.
        ArgumentTypeError: they cannot be read again for every epoch; the message gives the way out.
    """
    _refuse(items)
    if isinstance(items, range):
        rows_of(items)
    return Source(items=items, plan=IndexPlan.of(items) if _is_indexed(items) else None)


# Iterators of Python's own, and how a pipeline does the same, again in every epoch.
_INSTEAD: dict[type, str] = {
    enumerate: "source(items).enumerate()",
    map: "source(items).map(fn)",
    filter: "source(items).filter(fn)",
    zip: "nbpipe.zip(source(one), source(other))",
    reversed: "source(items[::-1])",
}


def _refuse(items: Any) -> None:
    if inspect.isclass(items) and not hasattr(type(items), "__iter__"):
        raise ArgumentTypeError(
            f"source must be a collection or a function, got the class {items.__name__}; "
            f"{_of_class(items)}"
        )
    if isinstance(items, str | bytes | bytearray):
        raise ArgumentTypeError(
            f"source must be a collection of items, got the {type(items).__name__} "
            f"{_short(items)}; for one path write source([path]), for files "
            "source(sorted(Path(folder).glob('*.jpg')))"
        )
    if isinstance(items, Iterator | AsyncIterator) or inspect.isgenerator(items):
        raise ArgumentTypeError(
            "source must be something that can be read again for every epoch, got an "
            f"object of type {type(items).__name__}, which is empty the second time; "
            f"{_of_iterator(items)}"
        )
    if isinstance(items, Mapping):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {type(items).__name__}; say which: "
            "source(list(d.items())), source(list(d)) or source(list(d.values()))"
        )
    _refuse_tables(items)
    if isinstance(items, set | frozenset):
        raise ArgumentTypeError(
            f"source must have an order that stays, got a {type(items).__name__}; "
            "give source(sorted(items))"
        )
    _refuse_what_cannot_be_read(items)


def _of_class(kind: type) -> str:
    """Return what to give in the place of a class."""
    if kind in _INSTEAD:
        return f"write {_INSTEAD[kind]}"
    if issubclass(kind, Iterator):
        made = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        return f"give a function that makes one for every epoch: source(lambda: {made}())"
    return f"give an instance: source({kind.__name__}(...))"


def _of_iterator(items: Any) -> str:
    """Return what to give in the place of an iterator."""
    kind = type(items)
    if kind in _INSTEAD:
        return f"write {_INSTEAD[kind]}, or source(list(...))"
    if isinstance(items, io.IOBase):
        return "give the function that opens it, source(lambda: open(path)), or source(list(...))"
    if kind.__module__ == "itertools":
        return (
            f"give the function that makes it, source(lambda: itertools.{kind.__name__}(...)), or, "
            "where it ends, source(list(...))"
        )
    alone = "give the function that makes it, source(make)"
    return alone if isinstance(items, AsyncIterator) else f"{alone}, or source(list(...))"


def _refuse_tables(items: Any) -> None:
    """Refuse what reads by column or by label where one expects rows."""
    kind = type(items)
    if getattr(items, "shape", None) == () and hasattr(items, "dtype"):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {kind.__name__} without dimensions, "
            f"{_short(items)}; give source([...]), or source(range(n)) for the numbers below n"
        )
    refuse_table("source must be", items, "source({})")
    if hasattr(type(items), "iloc"):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {kind.__name__}, which is read "
            "by label; give source(series.tolist())"
        )


def _refuse_what_cannot_be_read(items: Any) -> None:
    kind = type(items)
    if any(hasattr(kind, name) for name in ("__iter__", "__aiter__", "__getitem__")):
        return
    if not callable(items):
        raise ArgumentTypeError(
            f"source must be a collection, a dataset or a function that returns an iterator, "
            f"got {_short(items)}{_of_single(items)}"
        )
    try:
        parameters = parameters_of(items).values()
    except (TypeError, ValueError):
        return
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ArgumentTypeError(
            f"source function must take no arguments, got one that needs {', '.join(needed)}; "
            "use functools.partial"
        )


def _of_single(items: Any) -> str:
    """Return what may be meant by an object that cannot be read."""
    if isinstance(items, PurePath):
        return "; for its files give source(sorted(path.glob('*.jpg'))), for itself source([path])"
    if as_int(items) is not None:
        return f"; for the numbers below it give source(range({items}))"
    if hasattr(items, "to_batches"):
        return "; for its batches of rows give source(lambda: dataset.to_batches())"
    return ""


def _is_indexed(items: Any) -> bool:
    kind = type(items)
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return False
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is None or not isinstance(items, torch_data.IterableDataset)


def _short(value: object) -> str:
    return shortened(repr(value))
