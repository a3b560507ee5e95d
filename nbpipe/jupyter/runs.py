"""The runs of a kernel for a sidebar: one comm, which a front end finds when it asks for it.

Version 1. With the first run the kernel sends `{"type": "here"}`: a front end that looks when a
cell has ended would not find it while the cell that imports nbpipe trains. The front end sends
`{"op": "hello", "protocol": 1, "view": "..."}` and is told `{"type": "hello", "protocol": 1,
"version": "...", "runs": [...]}`, then `{"type": "runs", "runs": [...]}` when they have changed,
as long as views are open. What it sends to one run, and what that answers, are the messages of a
panel in an envelope: `{"op": "run", "run": 3, "message": {...}}` and `{"type": "run", "run": 3,
"message": {...}}`.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from time import monotonic
from typing import Any, NamedTuple, TypedDict, final

from ..base.format import plain
from ..base.names import own_kind
from ..errors import ArgumentError, NbpipeError, RunClosedError
from ..show.messages import Views, got, number_of, refusal, refused
from ..show.rules import LIMITS
from ..show.snapshot import Snapshot, label
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
_TOO_LONG = "this pipeline takes {:,} characters, too many for a cell; export it to a file"
_TO_ALL = {"pause_all": "pause", "resume_all": "resume", "stop_all": "stop"}
_GONE = "this run is gone; start another with pipe.start()"

_Message = Mapping[Any, Any]  # as it came


class RunRow(TypedDict):
    """A run in the list; `variable` and `cell` are empty where there is none."""

    run: int
    title: str
    variable: str
    cell: str
    state: str
    epoch: int
    done: int
    total: int | None
    unit: str
    rate: float
    left_s: float | None
    limit: str
    severity: str
    sentence: str
    actions: list[str]


class ListedRun(NamedTuple):
    """A row, and what looks at the run."""

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
        self.feed: RunChannel | None = None  # once somebody looks


@final
class KernelRuns:
    """The runs that were started in a kernel; it holds none of them.

    Until a front end says hello it notes each run that starts, and says of the first one that it
    is there; a front end without a sidebar passes over that.

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
        """Let nobody find it any more."""
        self._views.clear()
        publisher.discard(self)
        if self._comm is not None:
            forget_comm(self._comm)

    def _send(self, message: Mapping[str, Any]) -> None:
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

    def leave_out(self, run: RunView) -> None:
        """Called when a run turned out to be a part of another one."""
        with self._lock:
            self._entries = tuple(one for one in self._entries if one.run() is not run)

    def _kept(self) -> tuple[_Entry, ...]:
        """Return the runs that are there; the newest stays, as it was last."""
        newest = self._entries[-1:]
        return tuple(one for one in self._entries if one in newest or one.run() is not None)

    def _feed(self, entry: _Entry) -> RunChannel | None:
        """Return what looks at a run; None where it went before anybody looked."""
        with self._lock:
            run = entry.run()
            if entry.feed is None and run is not None:
                entry.feed = RunChannel(run, lambda message: self._send_of(entry.number, message))
                shown = getattr(run, "shown", None)
                if shown is not None:  # that of a loader may be gone before it is looked at again
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
        """Whether anyone looks."""
        return bool(self._views) or any(self._looked_at())

    def publish(self) -> None:
        """Send what changed since the last time, where that is long enough ago."""
        now_s = monotonic()
        if now_s < self._due_s:
            return
        known = (self._refresh_s.get(view, REFRESH_S) for view in self._views.names)
        self._due_s = now_s + min(known, default=REFRESH_S) - TICK_S / 2
        for feed in self._looked_at():
            feed.publish()
        if self._views:
            rows = self._rows(lately=True)
            if rows != self._sent:
                self._sent = rows
                self._send({"type": "runs", "runs": rows})

    def _looked_at(self) -> list[RunChannel]:
        """Return what looks at single runs."""
        feeds = (one.feed for one in self._entries)
        return [feed for feed in feeds if feed is not None and feed.wanted]

    # -- what a browser says --------------------------------------------------------------

    def receive(self, message: object) -> None:
        """Do what a message from a browser asks for, and answer it; never raises."""
        number = number_of(message)
        try:
            if not isinstance(message, Mapping):
                raise ArgumentError(f"a message must be an object, got {got(message)}")
            self._do(message)
        except NbpipeError as error:
            self._send(refused(number, error))
        if self.wanted:
            publisher.add(self)

    def _do(self, message: _Message) -> None:
        ops: dict[object, Callable[[_Message], bool]] = {
            "hello": self._hello,
            "view": self._note_views,
            "alive": self._note_views,
            "settings": self._set,
            "run": self._pass_on,
            "chain": self._write_chain,
            **dict.fromkeys(_TO_ALL, self._tell_all),
        }
        op = message.get("op")
        act = ops.get(op) if isinstance(op, str) else None
        if act is None:
            raise ArgumentError(f"op must be one of {', '.join(map(str, ops))}, got {got(op)}")
        if act(message):
            self._send({"type": "ack", "id": number_of(message), "ok": True})

    def _hello(self, message: _Message) -> bool:
        ours = message.get("protocol") == PROTOCOL
        if ours:
            self._views.note({"op": "view", "view": message.get("view")})
        self._sent = rows = self._rows() if ours else []
        told = {"type": "hello", "protocol": PROTOCOL, "version": __version__, "runs": rows}
        self._send(told)
        return False

    def _note_views(self, message: _Message) -> bool:
        self._views.note(message)
        return False

    def _set(self, message: _Message) -> bool:
        given: Any = message.get("refresh_s")
        view = message.get("view")
        refresh_s = float(given) if type(given) in (int, float) else 0.0
        if not _LEAST_S <= refresh_s <= _MOST_S:
            raise ArgumentError(
                f"refresh_s must be a number in [{_LEAST_S:g}, {_MOST_S:g}] s, got {got(given)}"
            )
        names = self._views.names
        known = {name: one for name, one in self._refresh_s.items() if name in names}
        self._refresh_s = known | {name: refresh_s for name in names if view in (None, name)}
        self._due_s = 0.0
        return True

    def _pass_on(self, message: _Message) -> bool:
        entry, inner = self._entry(message), message.get("message")
        feed = self._feed(entry)
        if feed is None:
            gone = refused(number_of(inner), RunClosedError(_GONE))
            self._send_of(entry.number, gone)
        else:
            feed.receive(inner)
        return False

    def _tell_all(self, message: _Message) -> bool:
        op = _TO_ALL[message["op"]]
        for entry in self._entries:
            feed = None if entry.run() is None else self._feed(entry)
            if feed is not None and op in feed.snapshot()["actions"]:
                feed.ask(op)
        return True

    def _write_chain(self, message: _Message) -> bool:
        run = self._entry(message).run()
        if run is None:
            raise RunClosedError(_GONE)
        number = number_of(message)
        threading.Thread(
            target=lambda: self._send(_chain(run, number)), name="nbpipe-chain", daemon=True
        ).start()
        return False

    def _entry(self, message: _Message) -> _Entry:
        number = message.get("run")
        for entry in self._entries:
            if entry.number == number and not isinstance(number, bool):
                return entry
        raise ArgumentError(f"run must be the number of a run of this kernel, got {got(number)}")


def _is_closed(value: object) -> bool:
    """Tell whether a value is a run that is over."""
    return own_kind(type(value)) == "run" and getattr(value, "closed", False) is True


def _is_loader(value: object) -> bool:
    return own_kind(type(value)) == "loader"


def _chain(run: RunView, number: int) -> dict[str, Any]:
    """Write the code of a pipeline, or tell why there is none; may take seconds."""
    answer = {"type": "chain", "id": number, "ok": False, "code": "", "error": ""}
    try:
        code = run._core.chain_code()
        if len(code) > _LONGEST_CODE:
            return {**answer, "error": _TOO_LONG.format(len(code))}
        return {**answer, "ok": True, "code": plain(code)}
    except Exception as error:  # noqa: BLE001  whoever asked is answered
        return {**answer, "error": refusal(error)}


def _row(entry: _Entry, variable: str, shown: Snapshot) -> RunRow:
    found = shown["diagnosis"]
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
        "actions": shown["actions"],
    }
