"""Every deliberate error of nbpipe.

Each class stands under its base::

    NbpipeError
    ├── ArgumentError (ValueError)          a value that cannot be accepted
    │   ├── DuplicateNameError              two stages were given the same name
    │   └── KnobError                       a knob was set to something out of range
    ├── ArgumentTypeError (TypeError)       an object of a kind that cannot be accepted
    │   └── UnpicklableError                something cannot be sent to another process
    ├── UnknownStageError (KeyError)        no stage of that name
    ├── UnknownKnobError (AttributeError)   no knob of that name
    ├── LengthUnknownError (TypeError)      len() of a pipeline whose length is not known
    ├── MissingExtraError (ImportError)     an optional package is not installed
    ├── FrontEndMissingError (RuntimeError) the panel's front end was not built
    ├── CacheError (RuntimeError)           a cache that cannot be used
    ├── StateError (ValueError)             a state that does not belong to this pipeline
    ├── ExportError (RuntimeError)          a pipeline cannot be written as a module
    │   └── ModuleEditedError               the file holds what export did not write
    ├── RemoteError (RuntimeError)          stands for an exception that could not be sent back
    ├── RunError (RuntimeError)             a run was used in a way it does not allow
    │   ├── RunClosedError                  the run was closed, or belongs to another process
    │   ├── ConcurrentIterationError        another thread is iterating this run
    │   ├── EpochClosedError                an epoch is used that a second loop, or its end, closed
    │   ├── ReentrantRunError               a stage called into the run that is running it
    │   └── WorkerStartError                a worker process could not be started
    └── StageError (RuntimeError)           a stage failed while the pipeline ran
        ├── StageTimeoutError (TimeoutError)  a call took longer than `timeout_s`
        ├── WorkerDiedError                 an item's worker process died, again and again
        ├── ExecutorBrokenError             the executor given does no more work
        └── FailureBudgetError              more items failed than `max_failures` allows
"""

from __future__ import annotations

import copy
import difflib
import itertools
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, TracebackType
from typing import Any

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CacheError",
    "ConcurrentIterationError",
    "DuplicateNameError",
    "EpochClosedError",
    "ExecutorBrokenError",
    "ExportError",
    "FailureBudgetError",
    "FrontEndMissingError",
    "KnobError",
    "LengthUnknownError",
    "MissingExtraError",
    "ModuleEditedError",
    "NbpipeError",
    "ReentrantRunError",
    "RemoteError",
    "RunClosedError",
    "RunError",
    "StageError",
    "StageTimeoutError",
    "StateError",
    "UnknownKnobError",
    "UnknownStageError",
    "UnpicklableError",
    "WorkerDiedError",
    "WorkerStartError",
]


class NbpipeError(Exception):
    """Base of every error that nbpipe raises on purpose.

    Examples:
        >>> import nbpipe
        >>> try:
        ...     nbpipe.source(range(3)).map(abs)["bas"]
        ... except nbpipe.NbpipeError as error:
        ...     print(error)
        no stage 'bas'; did you mean 'abs'?; this pipeline has 'source', 'abs'
    """

    def _render_traceback_(self) -> list[str]:
        """Called by IPython to show the error: what happened, and the user's own lines."""
        return _shown_last(self)


class ArgumentError(NbpipeError, ValueError):
    """A value that cannot be accepted; the message gives the rule and the way out."""


class DuplicateNameError(ArgumentError):
    """Two stages of one chain were given the same name by hand."""


class KnobError(ArgumentError):
    """A knob was set to something that is not an integer in its range; nothing changed."""


class ArgumentTypeError(NbpipeError, TypeError):
    """An object of a kind that cannot be accepted; the message gives the way out."""


class UnknownStageError(NbpipeError, KeyError):
    """The pipeline has no stage of this name."""

    def __str__(self) -> str:
        """Return the message as it is: KeyError would show its repr."""
        return str(self.args[0]) if self.args else ""


class UnknownKnobError(NbpipeError, AttributeError):
    """The stage has no knob or attribute of this name."""


class LengthUnknownError(NbpipeError, TypeError):
    """The number of items is not known before they are made."""


class MissingExtraError(NbpipeError, ImportError):
    """An optional package is missing; the message holds the pip line to type."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        """Build the error for `package`, brought by the extra `extra`, needed for `purpose`."""
        return cls(
            f"{purpose} needs {package}, which is not installed; "
            f"type: pip install 'jupyter-nbpipe[{extra}]'"
        )


class FrontEndMissingError(NbpipeError, RuntimeError):
    """The panel's front end was not built; wheels hold it, a clone builds it."""


class CacheError(NbpipeError, RuntimeError):
    """A cache folder belongs to another chain, or cannot be read."""


class StateError(NbpipeError, ValueError):
    """A state was taken from another pipeline or other data, or cannot be read."""


class ExportError(NbpipeError, RuntimeError):
    """A pipeline cannot be written as a module; names the culprit, its use and the way out."""


class ModuleEditedError(ExportError):
    """The file holds what export did not write, so it is not replaced; shows the difference."""

    WAY_OUT = "pass overwrite=True"  # to `export`

    def told(self, way_out: str) -> str:
        """Return the message for a caller that replaces the file in another way."""
        return str(self).replace(f"; {self.WAY_OUT} to", f"; {way_out} to", 1)


class UnpicklableError(ArgumentTypeError):
    """Something cannot be sent to another process; the message names it and the way out."""


class RemoteError(NbpipeError, RuntimeError):
    """Stands for an exception of another process that could not be sent back."""


class RunError(NbpipeError, RuntimeError):
    """A run was used in a way that it does not allow."""


class RunClosedError(RunError):
    """The run was closed, or was started in another process."""


class ConcurrentIterationError(RunError):
    """Another thread is iterating this run."""


class EpochClosedError(RunError):
    """An epoch is over that is to give items, or take indices.

    A second loop over the run has ended it; or indices were loaded into it after its end, or
    after `end()`.
    """


class ReentrantRunError(RunError):
    """A stage called into the run that is running it."""


class WorkerStartError(RunError):
    """A worker process, or a thread of a run, could not be started."""


class StageError(NbpipeError, RuntimeError):
    """A stage failed; the exception it raised is the `__cause__`.

    Attributes:
        stage: address of the stage in its pipeline.
        path: position of the item in the epoch's global order, as an int, or as a
            tuple with one more element for each `flat_map` child or `repeat` pass;
            None where no item was at work.
        executor: where the call ran.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        path: int | tuple[int, ...] | None = None,
        executor: str = "thread",
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.path = path
        self.executor = executor

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes where the error crosses to another process."""
        return type(self), self.args, dict(self.__dict__)


class StageTimeoutError(StageError, TimeoutError):
    """A call of a stage took longer than its `timeout_s`."""


class WorkerDiedError(StageError):
    """Every worker process that was given this item died."""


class ExecutorBrokenError(StageError):
    """The executor that was given for a stage does no more work."""


class FailureBudgetError(StageError):
    """More items of a stage failed than its `max_failures` allows."""


def near_match(name: str, known: Iterable[str]) -> str:
    """Return which known name is meant, as `; did you mean 'decode'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# -- What a notebook shows of them: the sentence and the user's own lines, not our frames ----------
_OURS = __file__.removesuffix("errors.py")
_NOT_USERS = (_OURS, os.__file__.removesuffix("os.py"), "<frozen")  # ours, and Python's own
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_CALLS_CELLS = os.sep + "IPython" + os.sep
_WHOLE = "_nbpipe_whole"  # attribute of an error that is a copy: the error itself
_shows_all = False


def full_tracebacks(on: bool = True) -> None:  # noqa: FBT001, FBT002  a switch
    """Show nbpipe's own frames in the tracebacks of its errors in a notebook, or hide them again.

    `%tb` then shows the last error again. Items that fail from then on keep the frames, too.

    Args:
        on: whether to show them.

    Examples:
        >>> import nbpipe
        >>> nbpipe.debug.full_tracebacks()
        >>> nbpipe.debug.full_tracebacks(on=False)
    """
    global _shows_all  # noqa: PLW0603
    _shows_all = bool(on)


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute of a user's exception, which may be a frozen dataclass."""
    BaseException.__setattr__(error, name, value)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to a user's exception, which may be a frozen dataclass."""
    if not isinstance(getattr(error, "__notes__", None), list):
        set_attribute(error, "__notes__", [])
    error.__notes__.append(note)


def show_briefly(error: BaseException) -> None:
    """Have a notebook show an interrupt of ours as it shows our errors; it stays what it is."""
    error._render_traceback_ = _rendered_last  # type: ignore[attr-defined]


def _rendered_last() -> list[str]:
    """Have IPython format the error that it shows; one that held this by itself would be a ring."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return [] if error is None else _shown_last(error)


def _shown_last(error: BaseException) -> list[str]:
    """Have IPython format an error, and have `%debug` begin in the user's code."""
    whole: BaseException = vars(error).get(_WHOLE, error)
    lines = _rendered(whole)
    if getattr(sys, "last_value", None) is error:
        _debug_from(whole if _shows_all else _without_our_frames(whole))
    return lines


def _debug_from(error: BaseException) -> None:
    sys.last_value, sys.last_traceback = error, error.__traceback__
    if hasattr(sys, "last_exc"):
        sys.last_exc = error


def _without_our_frames(error: BaseException) -> BaseException:
    """Return a copy that ends in the frames of its cause; the error keeps all of its own."""
    try:
        found = copy.copy(error)
    except Exception:  # noqa: BLE001  an exception of the user's may be of any kind
        return error
    frames = _frames_without_ours(error.__traceback__)
    if isinstance(error, StageError) and error.__cause__ is not None:
        frames += _frames_without_ours(error.__cause__.__traceback__)
    set_attribute(found, "__traceback__", _traceback_of(frames))
    for name in ("__cause__", "__context__", "__suppress_context__"):
        set_attribute(found, name, getattr(error, name))
    set_attribute(found, _WHOLE, error)
    return found


def _rendered(error: BaseException) -> list[str]:
    """Have IPython format an error, in the mode that `%xmode` chose."""
    before = [(one, one.__traceback__, one.__cause__, one.__context__) for one in _linked(error)]
    quiet = [one.__suppress_context__ for one, *_ in before]
    try:
        if not _shows_all:
            for one, tb, *_ in before:
                set_attribute(one, "__traceback__", _without_ours(tb))
            _cut(error)
        return _formatted(error)
    finally:
        for (one, tb, cause, context), suppressed in zip(before, quiet, strict=True):
            set_attribute(one, "__traceback__", tb)
            set_attribute(one, "__cause__", cause)
            set_attribute(one, "__context__", context)
            set_attribute(one, "__suppress_context__", suppressed)


def _formatted(error: BaseException) -> list[str]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    frames = None if shell is None else getattr(shell, "InteractiveTB", None)
    if frames is None:
        return "".join(traceback.format_exception(error)).splitlines()
    shown: list[str] = frames.structured_traceback(
        type(error), error, error.__traceback__, tb_offset=int(_shows_all)
    )
    return shown


def _linked(error: BaseException) -> list[BaseException]:
    """Return an error and those that IPython shows with it, from the last to the first."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is one for one in found):
        found.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return found


def _cut(error: BaseException) -> None:
    """Leave out what led to an error inside nbpipe: its sentence says it."""
    for link in _linked(error):
        why = link.__cause__ or link.__context__
        if why is not None and not isinstance(link, StageError) and not _is_users(why):
            set_attribute(link, "__cause__", None)
            set_attribute(link, "__suppress_context__", True)  # noqa: FBT003


def _is_users(error: BaseException) -> bool:
    """Return whether an error passed through code that is neither ours nor a library's."""
    names = [one.tb_frame.f_code.co_filename for one in _frames(error.__traceback__)]
    return any(map(is_users_file, names))


def is_users_file(name: str) -> bool:
    """Return whether a file of code is neither ours nor Python's nor an installed package's."""
    return not _is_installed(name) and not name.startswith(_NOT_USERS)


def is_own_file(name: str) -> bool:
    """Return whether a file of code belongs to nbpipe."""
    return name.startswith(_OURS)


def _is_installed(name: str) -> bool:
    return any(part in name for part in _INSTALLED)


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _without_ours(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, what we call of Python, and what calls a cell."""
    return _traceback_of(_frames_without_ours(tb)) or tb


def _frames_without_ours(tb: TracebackType | None) -> list[TracebackType]:
    frames = list(_frames(tb))
    return [frames[place] for place in _shown([one.tb_frame.f_code.co_filename for one in frames])]


def _traceback_of(frames: Sequence[TracebackType]) -> TracebackType | None:
    found: TracebackType | None = None
    for one in reversed(frames):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _shown(files: Sequence[str]) -> list[int]:
    """Return the places of the frames to show, given the file of each."""
    kept: list[int] = []
    others: list[int] = []
    below = True  # ours, or what we call
    for place, name in enumerate(files):
        installed = _is_installed(name)
        if name.startswith(_OURS) or (installed and _CALLS_CELLS in name):
            below = True
            continue
        others.append(place)
        below = below and not installed and name.startswith(_NOT_USERS)
        if not below:
            kept.append(place)
    return kept or others  # a function of Python's own may be a stage


_MOST_LINKS = 32  # exceptions of one chain that are shown
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class BriefTraceback:
    """The traceback of a failed item, formatted when it is first read.

    It holds no frame, and so none of the values that the frames hold. It can be pickled: the lines
    are looked up where it is read.

    Args:
        error: the exception, with those that led to it.
    """

    __slots__ = ("_links", "_placed", "_text")

    def __init__(self, error: BaseException) -> None:
        self._links: list[tuple[str, Iterable[_Frame], list[str]]] = []
        self._placed: list[list[_Place]] = []  # of each link, once it is formatted
        self._text = ""
        link: BaseException | None = error
        seen: set[int] = set()
        while link is not None and id(link) not in seen and len(seen) < _MOST_LINKS:
            if isinstance(link, BaseExceptionGroup):  # its parts are many, and it is rare
                self._text = _format_at_once(error)
                return
            seen.add(id(link))
            cause, context = link.__cause__, link.__context__
            before = None if link.__suppress_context__ else context
            words = _CAUSE if cause is not None else _CONTEXT if before is not None else ""
            frames = [
                (one.tb_frame.f_code, one.tb_lasti, one.tb_lineno)
                for one in _frames(link.__traceback__)
            ]
            self._links.append((words, frames, _last_lines(link)))
            link = cause if cause is not None else before

    @property
    def line(self) -> str:
        """The exception in one line: its type and message."""
        return "".join(self._links[0][2][:1]).strip() if self._links else ""

    def format(self) -> str:
        """Return the text: the user's lines, ours only where they are shown."""
        if self._text:
            return self._text
        self._place()
        lines: list[str] = []
        for (words, _, last), places in reversed([*zip(self._links, self._placed, strict=True)]):
            shown = range(len(places)) if _shows_all else _shown([place[0] for place in places])
            stack = traceback.StackSummary.from_list([_summary(places[one]) for one in shown])
            lines += (words, "Traceback (most recent call last):\n", *stack.format(), *last)
        return "".join(lines)

    def _place(self) -> None:
        self._placed = self._placed or [[*_places(frames)] for _, frames, _ in self._links]

    def __getstate__(self) -> tuple[Any, ...]:
        """Leave out code, which cannot be pickled."""
        self._place()
        return [(words, (), last) for words, _, last in self._links], self._placed, self._text

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take over what another process has sent."""
        self._links, self._placed, self._text = state


# File, line and function of a frame, then the last line and the columns, where they are known.
_Place = tuple[str, int, str, int | None, int | None, int | None]
_Frame = tuple[CodeType, int, int]  # a code, an instruction of it, and its line


def _places(frames: Iterable[_Frame]) -> Iterator[_Place]:
    for code, instruction, line in frames:
        known = itertools.islice(code.co_positions(), instruction // 2, None)
        yield code.co_filename, line, code.co_name, *next(known, (None,) * 4)[1:]


def _summary(place: _Place) -> traceback.FrameSummary:
    name, line, function, last, begins, ends = place
    return traceback.FrameSummary(
        name, line, function, lookup_line=False, end_lineno=last, colno=begins, end_colno=ends
    )


def _last_lines(error: BaseException) -> list[str]:
    """Return what Python writes below the frames; it looks at no file for that."""
    found = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=0, lookup_lines=False, compact=True
    )
    return [*found.format_exception_only()]


def _format_at_once(error: BaseException) -> str:
    found = traceback.TracebackException.from_exception(error)
    links = [] if _shows_all else [found]  # and those that led to it, and the parts of a group
    for link in links:
        more = (link.__cause__, link.__context__, *(link.exceptions or ()))
        links += [one for one in more if one is not None]
        places = _shown([frame.filename for frame in link.stack])
        link.stack[:] = [link.stack[place] for place in places] or link.stack
    return "".join(found.format())


def __dir__() -> list[str]:
    return __all__
