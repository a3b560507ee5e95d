"""Look at a scheduler: counters of every stage, and what is in progress, at one moment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..metrics import StageStats
from .lane import Lane

if TYPE_CHECKING:
    from .scheduler import Scheduler


def catch_up(scheduler: Scheduler) -> None:
    """Bring the states of cheap stages up to date, before the time at rest is booked."""
    if scheduler.epoch is not None:
        for node in scheduler.epoch.order:
            node.lane.state = node.state()


def look(scheduler: Scheduler, now_ns: int) -> list[tuple[Lane, int, int]]:
    """Give every lane, the results behind it and the time of its running calls [ns].

    Called under the lock.
    """
    waiting: dict[int, int] = {}
    if scheduler.epoch is not None:
        for node in scheduler.epoch.order:
            waiting[id(node.lane)] = node.queued()
    spent: dict[int, int] = {}
    for task in scheduler.at_work():
        if task.started_ns and not task.ended_ns and not task.node.shares_workers:
            key = id(task.node.lane)
            spent[key] = spent.get(key, 0) + max(0, now_ns - task.started_ns)
    return [
        (lane, waiting.get(id(lane), 0), spent.get(id(lane), 0))
        for lane in scheduler.lanes.values()
    ]


def oldest(scheduler: Scheduler, now_ns: int) -> dict[str, tuple[int, str]]:
    """Give for each lane with calls in progress the time of the oldest [ns], and its item.

    Called under the lock.
    """
    found: dict[str, tuple[int, str]] = {}
    for task in scheduler.at_work():
        if not task.started_ns or task.ended_ns:
            continue
        node = task.node
        lanes = (node.lane,) if node.shares_workers else (node.lane, *node.rest_lanes)
        address = lanes[min(task.step, len(lanes) - 1)].address
        age_ns = now_ns - max(task.started_ns, task.seen_ns)
        if age_ns > found.get(address, (0, ""))[0]:
            found[address] = age_ns, node.item_of(task)
    return found


def rows_of(scheduler: Scheduler, now_ns: int) -> dict[str, StageStats]:
    """Give the stats of every stage that has a lane; under the lock."""
    catch_up(scheduler)
    return {
        lane.address: lane.stats(now_ns, queued, running_ns)
        for lane, queued, running_ns in look(scheduler, now_ns)
    }


def stats(scheduler: Scheduler, now_ns: int) -> dict[str, StageStats]:
    """Give the stats of every stage that has a lane.

    Between epochs they are those at the end of the last one, whatever is turned since then; the
    limits in force and the calls in progress are those of now.
    """
    with scheduler.lock:
        lanes = scheduler.lanes.values()
        if scheduler.epoch is None:
            for lane in lanes:
                lane.skip_time(now_ns)
        if scheduler.epoch is None and scheduler.past:
            rows = {lane.address: _as_now(scheduler.past[lane.address], lane) for lane in lanes}
        else:
            rows = rows_of(scheduler, now_ns)
        for address, (age_ns, item) in oldest(scheduler, now_ns).items():
            rows[address] = dataclasses.replace(
                rows[address], oldest_s=age_ns / 1e9, oldest_item=item
            )
    return {address: _with_workers(scheduler, address, row) for address, row in rows.items()}


def _as_now(past: StageStats, lane: Lane) -> StageStats:
    """Give the stats of an epoch that is over, with what else can still change."""
    return dataclasses.replace(
        past,
        running=lane.active,
        concurrency=lane.concurrency,
        queued=0,
        prefetch=lane.prefetch,
    )


def _with_workers(scheduler: Scheduler, address: str, row: StageStats) -> StageStats:
    """Add the workers of a region to the row of its first stage."""
    regions = scheduler.regions
    caller = regions.caller(address)
    if caller is None:
        return row
    if not row.items_out and caller.starting >= max(1, caller.workers):
        # Their calls are in progress, but nothing is inside a function yet.
        row = dataclasses.replace(row, busy=0.0, starved=0.0, blocked=0.0, waiting=1.0)
    if regions.head(address) != address:
        return row
    return dataclasses.replace(
        row,
        workers=caller.workers,
        starting=caller.starting,
        memory_bytes=caller.memory_bytes,
    )
