"""The runs of a kernel for a sidebar: one comm, which a front end finds when it asks for it.

Version 1. With the first run the kernel sends `{"type": "here"}`: a front end that asks when a
cell has ended would not find it while the cell that imports nbpipe trains. The front end sends
`{"op": "hello", "protocol": 1, "view": "..."}` and gets `{"type": "hello", "protocol": 1,
"version": "...", "runs": [...]}`, then `{"type": "runs", "runs": [...]}` when they have changed,
as long as views are open. Messages to and from one run are those of a panel in an envelope:
`{"op": "run", "run": 3, "message": {...}}` and `{"type": "run", "run": 3, "message": {...}}`.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, final

from ..base.format import plain
from ..base.names import own_kind
from ..errors import ArgumentError, RunClosedError
from ..show.messages import (
    Ack,
    Ops,
    Views,
    anything,
    boolean,
    got,
    integer,
    message_id,
    number_of,
    optional,
    refusal,
    refused,
    view_name,
    view_names,
)
from ..show.snapshot import (
    Action,
    Amount,
    Count,
    Integer,
    KnobTarget,
    Limits,
    Line,
    Name,
    Severity,
    Snapshot,
    State,
    label,
)
from ..show.verdict.diagnosis import LIMITS
from ..show.watch import RunView
from ..version import __version__
from .kernel import forget_comm, unannounced_comm
from .publisher import TICK_S, RunChannel, publisher

TARGET = "nbpipe.runs"
PROTOCOL = 1
REFRESH_S = 0.5  # unless a view asks for another rate
_LEAST_S, _MOST_S = TICK_S, 10.0
_MOST_ROWS = 100
_LONGEST_CODE = 100_000  # characters
_LONGEST_ERROR = 8100  # characters
_TOO_LONG = "this pipeline takes {:,} characters, too many for a cell; export it to a file"
_GONE = "this run is gone; start another with pipe.start()"


class RunRow(TypedDict):
    """A run in the list; `variable`, `cell` and `evidence` are empty where there is none."""

    run: Count
    title: Name
    variable: Name
    cell: Name
    state: State
    epoch: Integer
    done: Count
    total: Count | None
    unit: Name
    rate: Amount
    left_s: Amount | None
    limit: Name
    severity: Severity
    sentence: Line
    evidence: Line
    suggestion: KnobTarget | None
    actions: list[Action]


class Here(TypedDict):
    """The first run has started: for a front end that has not found the kernel yet."""

    type: Literal["here"]


class RunsHello(TypedDict):
    """Answer to a hello; there are no runs for a front end of another protocol."""

    type: Literal["hello"]
    protocol: Count
    version: Name
    runs: Annotated[list[RunRow], Limits(0, _MOST_ROWS)]


class RunsTick(TypedDict):
    """The runs, when they have changed."""

    type: Literal["runs"]
    runs: Annotated[list[RunRow], Limits(0, _MOST_ROWS)]


class RunMessage(TypedDict):
    """A message of one run."""

    type: Literal["run"]
    run: Count
    message: Mapping[str, Any]


class ChainAnswer(TypedDict):
    """The code of a pipeline, or why there is none."""

    type: Literal["chain"]
    id: Count
    ok: bool
    code: Annotated[str, Limits(0, _LONGEST_CODE)]
    error: Annotated[str, Limits(0, _LONGEST_ERROR)]


RunsMessage = Here | RunsHello | RunsTick | RunMessage | ChainAnswer | Ack
_OPS = Ops()


class ListedRun(NamedTuple):
    """A row, and the messages of its run."""

    row: RunRow
    feed: RunChannel

    @property
    def run(self) -> RunView | None:
        """The run, or None where it is gone."""
        return self.feed.run


class _Entry:
    """A run that was started: its number stays."""

    def __init__(self, number: int, run: RunView, cell: str) -> None:
        self.number = number
        self.run = weakref.ref(run)
        self.cell = cell
        self.feed: RunChannel | None = None  # once a front end asks for it


@final
class KernelRuns:
    """The runs that were started in a kernel; it holds none of them.

    Until a front end says hello it records each run that starts, and announces the first one; a
    front end without a sidebar ignores that.

    Args:
        variables: returns the user's variables by name.
    """

    def __init__(self, variables: Callable[[], MutableMapping[str, object]]) -> None:
        self._variables = variables
        self._numbers = itertools.count(1)
        self._entries: tuple[_Entry, ...] = ()  # oldest first
        self._lock = threading.RLock()
        self._views = Views()
        self._refresh_s: dict[str, float] = {}  # by view
        self._due_s = 0.0
        self._sent: list[RunRow] | None = None
        self._comm: Any = None

    # -- the comm -------------------------------------------------------------------------
    def open(self, kernel: object) -> None:
        """Let a front end find the comm."""
        self._comm = unannounced_comm(
            kernel, TARGET, lambda message: self.receive(message["content"]["data"])
        )
        if self._comm is not None:
            self._comm.on_close(lambda _: self.open(kernel))  # another page may still want it

    def close(self) -> None:
        """Close the comm: a front end does not find it."""
        self._views.clear()
        publisher.discard(self)
        if self._comm is not None:
            forget_comm(self._comm)

    def _send(self, message: RunsMessage) -> None:
        if self._comm is not None:
            self._comm.send(dict(message))

    # -- runs -----------------------------------------------------------------------------
    def note(self, run: RunView, cell: str) -> None:
        """Called when a run started.

        Args:
            run: the run; it is held weakly.
            cell: id of the cell that started it, or "".
        """
        with self._lock:
            entry = _Entry(next(self._numbers), run, cell)
            self._entries = (*self._kept(), entry)
        if entry.number == 1:
            self._send({"type": "here"})

    def name(self, run: RunView, pipe: object) -> str:
        """Give a run a variable, which holds it; return its name.

        Args:
            run: the run.
            pipe: its pipeline: that of `train` is called `train_run`, where that is free.
        """
        variables = self._variables()
        names = [name for name, value in dict(variables).items() if value is pipe]
        named = next((name for name in names if not name.startswith("_")), "pipe")
        found, number = f"{named}_run", 2
        while found in variables and not _is_closed(variables[found]):
            found, number = f"{named}_run_{number}", number + 1
        variables[found] = run
        return found

    def variable_of(self, run: RunView) -> str:
        """Return the variable of a run, or of the loader whose run it is; "" where it has none."""
        return self._names().get(id(run), "")

    def leave_out(self, run: RunView) -> None:
        """Called when a run turned out to be a part of another one."""
        with self._lock:
            self._entries = tuple(one for one in self._entries if one.run() is not run)

    def _kept(self) -> tuple[_Entry, ...]:
        """Return the runs that are there; the newest stays, as it was last."""
        newest = self._entries[-1:]
        return tuple(one for one in self._entries if one in newest or one.run() is not None)

    def _feed(self, entry: _Entry) -> RunChannel | None:
        """Return the messages of a run; None where it was gone before they were asked for."""
        with self._lock:
            run = entry.run()
            if entry.feed is None and run is not None:
                entry.feed = RunChannel(run, lambda message: self._send_of(entry.number, message))
                shown = getattr(run, "shown", None)
                if shown is not None:  # that of a loader may be gone before the next snapshot
                    shown.add(entry.feed)
            return entry.feed

    def _send_of(self, number: int, message: Mapping[str, Any]) -> None:
        self._send({"type": "run", "run": number, "message": message})

    def listed(self, *, lately: bool = False) -> list[ListedRun]:
        """Return the open runs, oldest first, and the newest as it was last.

        Args:
            lately: as `RunController.glance` sees them.
        """
        with self._lock:
            self._entries = entries = self._kept()
        names = self._names()
        found = []
        for entry in entries[-_MOST_ROWS:]:
            run, feed = entry.run(), self._feed(entry)
            if feed is not None and (entry is entries[-1] or (run is not None and not run.closed)):
                shown = feed.glance() if lately else feed.snapshot()
                row = _row(entry, names.get(id(run), ""), shown)
                found.append(ListedRun(row, feed))
        return found

    def _rows(self, *, lately: bool = False) -> list[RunRow]:
        return [one.row for one in self.listed(lately=lately)]

    def _names(self) -> dict[int, str]:
        """Return the variables of runs, and of loaders by their runs, by the runs' ids."""
        runs = {id(run) for one in self._entries if (run := one.run()) is not None}
        found: dict[int, str] = {}
        for name, value in dict(self._variables()).items():
            if name.startswith("_"):
                continue
            one = getattr(value, "run", None) if _is_loader(value) else value
            if id(one) in runs:
                found.setdefault(id(one), name)
        return found

    # -- what the publisher asks ----------------------------------------------------------
    @property
    def wanted(self) -> bool:
        """Whether a view is open."""
        return bool(self._views) or any(self._wanted_feeds())

    def publish(self) -> None:
        """Send what changed since the last time, where that is long enough ago."""
        now_s = monotonic()
        if now_s < self._due_s:
            return
        known = (self._refresh_s.get(view, REFRESH_S) for view in self._views.names)
        self._due_s = now_s + min(known, default=REFRESH_S) - TICK_S / 2
        for feed in self._wanted_feeds():
            feed.publish()
        if self._views:
            rows = self._rows(lately=True)
            if rows != self._sent:
                self._sent = rows
                self._send({"type": "runs", "runs": rows})

    def _wanted_feeds(self) -> list[RunChannel]:
        """Return the feeds of runs whose panels are open."""
        feeds = (one.feed for one in self._entries)
        return [feed for feed in feeds if feed is not None and feed.wanted]

    # -- what a browser asks for -----------------------------------------------------------
    def receive(self, message: object) -> None:
        """Do what a message from a browser asks for, and answer it; never raises."""
        ack = _OPS.answer(self, message)
        if ack is not None:
            self._send(ack)
        if self.wanted:
            publisher.add(self)

    @_OPS.op("hello", ack=False, protocol=anything, view=anything)
    def _hello(self, protocol: object, view: object) -> None:
        is_ours = protocol == PROTOCOL
        if is_ours:
            self._views.open(view_name(view, "view"))
        self._sent = rows = self._rows() if is_ours else []
        self._send({"type": "hello", "protocol": PROTOCOL, "version": __version__, "runs": rows})

    @_OPS.op("view", ack=False, view=view_name, open=optional(boolean, default=True))
    def _view(self, view: str, *, open: bool) -> None:  # noqa: A002  as the message calls it
        if open:
            self._views.open(view)
        else:
            self._views.close(view)

    @_OPS.op("alive", ack=False, views=view_names)
    def _alive(self, views: list[str]) -> None:
        self._views.renew(views)

    @_OPS.op("settings", view=optional(view_name, default=None), refresh_s=anything)
    def _set(self, view: str | None, refresh_s: Any) -> None:
        if type(refresh_s) not in (int, float) or not _LEAST_S <= refresh_s <= _MOST_S:
            raise ArgumentError(
                f"refresh_s must be a number in [{_LEAST_S:g}, {_MOST_S:g}] s, got {got(refresh_s)}"
            )
        names = self._views.names
        known = {name: one for name, one in self._refresh_s.items() if name in names}
        changed = {name: float(refresh_s) for name in names if view in (None, name)}
        self._refresh_s = known | changed
        self._due_s = 0.0

    @_OPS.op("run", ack=False, run=integer, message=anything)
    def _pass_on(self, run: int, message: object) -> None:
        entry = self._entry(run)
        feed = self._feed(entry)
        if feed is None:
            self._send_of(run, refused(number_of(message), RunClosedError(_GONE)))
        else:
            feed.receive(message)

    @_OPS.op("pause_all", "resume_all", "stop_all", op=anything)
    def _ask_all(self, op: str) -> None:
        op = op.removesuffix("_all")
        for entry in self._entries:
            feed = None if entry.run() is None else self._feed(entry)
            if feed is not None and op in feed.snapshot()["actions"]:
                feed.ask(op)

    @_OPS.op("chain", ack=False, run=integer, id=message_id)
    def _write_chain(self, run: int, id: int) -> None:  # noqa: A002  as the message calls it
        found = self._entry(run).run()
        if found is None:
            raise RunClosedError(_GONE)
        threading.Thread(
            target=lambda: self._send(_chain(found, id)), name="nbpipe-chain", daemon=True
        ).start()

    def _entry(self, number: int) -> _Entry:
        for entry in self._entries:
            if entry.number == number:
                return entry
        raise ArgumentError(f"run must be the number of a run of this kernel, got {got(number)}")


def _is_closed(value: object) -> bool:
    """Return whether a value is a run that was closed."""
    return own_kind(type(value)) == "run" and getattr(value, "closed", False) is True


def _is_loader(value: object) -> bool:
    return own_kind(type(value)) == "loader"


def _chain(run: RunView, number: int) -> ChainAnswer:
    """Write the code of a pipeline, or return why there is none; may take seconds."""
    answer: ChainAnswer = {"type": "chain", "id": number, "ok": False, "code": "", "error": ""}
    try:
        code = plain(run._core.chain_code())
    except Exception as error:  # noqa: BLE001  the browser waits for an answer
        return {**answer, "error": refusal(error)}
    if len(code) > _LONGEST_CODE:
        return {**answer, "error": _TOO_LONG.format(len(code))}
    return {**answer, "ok": True, "code": code}


def _row(entry: _Entry, variable: str, shown: Snapshot) -> RunRow:
    found, tuner = shown["diagnosis"], shown["tuner"]
    is_tuned = tuner is not None and tuner["active"]
    return {
        "run": entry.number,
        "title": shown["title"],
        "variable": label(variable),
        "cell": label(entry.cell),
        "state": shown["state"],
        "epoch": shown["epoch"],
        "done": shown["delivered"],
        "total": shown["total"],
        "unit": shown["unit"],
        "rate": shown["items_per_s"],
        "left_s": shown["left_s"],
        "limit": found["stage"] or "" if found["kind"] == LIMITS else "",
        "severity": found["severity"],
        "sentence": found["text"],
        "evidence": found["evidence"],
        "suggestion": None if is_tuned else found["suggestion"],
        "actions": shown["actions"],
    }
