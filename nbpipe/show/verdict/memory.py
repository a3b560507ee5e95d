"""Memory: the process and its workers have nearly all that they can get; what holds most of it."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple, final

from ...base.format import format_bytes
from ...base.machine import Machine
from ...ops.stage import CONSUMER
from .case import Case
from .diagnosis import Diagnosis, short_name

_NEAR = 0.9  # of what this process and its workers can get
_READ_S = 1.0  # memory is read no more often


class ResidentMemory(NamedTuple):
    """The memory of this process and of all below it.

    Attributes:
        resident_bytes: that they have [bytes].
        free_bytes: that they can get [bytes].
    """

    resident_bytes: int
    free_bytes: int


@final
class MemoryReader:
    """Reads the memory of this process and of all below it now and then."""

    def __init__(self) -> None:
        self._machine = Machine()
        self._known: ResidentMemory | None = None
        self._read_s = float("-inf")

    def read(self) -> ResidentMemory | None:
        """Return it as it was a moment ago at most; None where the system does not report it."""
        now_s = monotonic()
        if now_s - self._read_s >= _READ_S:
            self._read_s = now_s
            try:
                found = ResidentMemory(self._machine.resident_bytes(), self._machine.free_bytes())
            except (OSError, ValueError, LookupError):
                found = None
            self._known = found
        return self._known


reader = MemoryReader()


class _Holder(NamedTuple):
    """Something that holds memory.

    Attributes:
        size_bytes: how much [bytes].
        stage: address; None for what belongs to no stage.
        kind: "buffers", "workers" or "rest".
    """

    size_bytes: float
    stage: str | None
    kind: str


def nearly_full(case: Case) -> Diagnosis | None:
    """Find that memory is nearly full; then the system may end the process at any time."""
    memory = reader.read()
    if memory is None:
        return None
    limit = memory.resident_bytes + memory.free_bytes
    if memory.resident_bytes < _NEAR * limit:
        return None
    holder = max(_holders(case, memory), key=lambda one: one.size_bytes)
    evidence, advice, target = _words(case, holder)
    used = f"{format_bytes(memory.resident_bytes)} of {format_bytes(limit)} in use"
    return Diagnosis(
        stage=holder.stage or CONSUMER,
        cause="full-memory",
        text=f"Memory is nearly full: {used}.",
        evidence=f"{evidence} {format_bytes(holder.size_bytes)}, the largest part",
        advice=advice,
        suggestion=target,
    )


def _holders(case: Case, memory: ResidentMemory) -> list[_Holder]:
    found = []
    for address, row in case.rows.items():
        found.append(_Holder(row.queued * row.item_bytes, address, "buffers"))
        found.append(_Holder(row.memory_bytes, address, "workers"))
    rest = memory.resident_bytes - sum(one.size_bytes for one in found)
    return [*found, _Holder(max(0.0, rest), None, "rest")]


def _words(case: Case, holder: _Holder) -> tuple[str, str, tuple[str, str, int] | None]:
    """Return what the holder is, the advice, and what would carry it out."""
    if holder.stage is None:
        process = "this process takes"
        if case.status.isolated:
            process = "this process and that of the stages take"
        return process, "Keep fewer batches in your loop, or use a smaller model or batch.", None
    name = short_name(holder.stage)
    if holder.kind == "buffers":
        budget = 'Start with a budget for buffers, for example memory="1GB".'
        smaller = budget if case.is_run else "Use smaller batches."
        return f"results of {name} that wait take", *_fewer(case, holder.stage, "prefetch", smaller)
    count = case.rows[holder.stage].workers
    workers = f"{count} workers of {name} take" if count > 1 else f"a worker of {name} takes"
    less = "Load less in a worker."
    if case.is_run:
        less = "Load less in a worker, or replace one that grows: max_items_per_worker=1000."
    return workers, *_fewer(case, holder.stage, "concurrency", less)


def _fewer(
    case: Case, stage: str, name: str, otherwise: str
) -> tuple[str, tuple[str, str, int] | None]:
    """Advise half of a knob; else what helps where it is as low as it can be."""
    knob = case.stages[stage].knobs.get(name)
    value = 0 if knob is None else knob.value // 2
    if knob is None or value < max(1, knob.minimum):
        return otherwise, None
    setting, number = case.setting(name, value, stage)
    return f"Set {setting} to {number}.", (stage, name, value)
