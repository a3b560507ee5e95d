"""ExpandNode: sources, and operations that give any number of items for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..rest import Rest
from ..seeding import Path
from .lane import Lane
from .logs import Children, Drops
from .node import Node
from .noting import Stages
from .task import Expansion, Task

if TYPE_CHECKING:
    from .epoch import Epoch
    from .opening import Opener


class ExpandNode(Node):
    """Draws from one iterator for each item, `concurrency` of them side by side.

    In order, the first expansion hands on at once; later ones work ahead into buffers that
    count against the same bound, which always leaves one place to the first.

    Args:
        opener: makes the iterator of an expansion and says what a failure does.
        source: there is no input; one expansion is there from the beginning.
        known: for the path of an input its children that are wanted, where not all are.
    """

    __slots__ = (
        "buffered",
        "children",
        "drops",
        "live",
        "opener",
        "seq_in",
        "source",
    )

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch,
        opener: Opener,
        *,
        ordered: bool = True,
        remote: bool = False,
        source: bool = False,
        known: dict[Path, Rest] | None = None,
    ) -> None:
        super().__init__(lane, epoch, ordered=ordered, remote=remote)
        self.active_without_input = True
        self.opener = opener
        self.source = source
        self.live: list[Expansion] = []
        self.seq_in = 0
        self.buffered = 0
        self.drops = Drops()  # of a source, by the inline stages that run with it
        self.children = Children(known or {})
        if source:
            self.live.append(Expansion(0))
            self.input_over = True

    def held(self) -> int:
        """Give the number of results ready, those that wait for their turn included."""
        return len(self.out) + self.buffered

    def busy(self) -> bool:
        """Say whether anything is in this node, or may still be drawn."""
        return bool(self.live) or super().busy()

    def inputs(self, results: int) -> int:
        """Count the inputs of a task: those of a call were counted when it began."""
        return results if self.source else 0

    def item_of(self, task: Task) -> str:
        """Say which item is drawn from, or, of a source, the number of the one to come."""
        expansion = task.expansion
        if expansion is None:
            return ""
        if expansion.entry is not None:
            return str(expansion.entry[0])
        return str(task.drawn + len(task.results))

    def has_input(self) -> bool:
        """Say whether anything could be drawn."""
        return bool(self.inbox) or any(not x.over and not x.held for x in self.live)

    def runnable(self) -> bool:
        """Say whether `take` would give a task."""
        return self._choose() is not None

    def _choose(self) -> tuple[Expansion | None, int] | None:
        """Give the expansion to draw from (None: a new one) and the places it may use."""
        if self.done or self.halted or not self.epoch.admits(self):
            return None
        lane, room = self.lane, self.room()
        if lane.active >= lane.concurrency:
            return None
        calls = lane.active - self.running
        for place, expansion in enumerate(self.live):
            calls += not expansion.over
            if expansion.held or expansion.over:
                continue
            if not self.ordered:
                allowed = room
            elif place == 0:  # it goes on though later ones, or a lowered knob, leave no room
                needed = not self.reserved and len(self.out) < (self.gathers or 1)
                allowed = max(room, 1) if needed else room
            else:
                allowed = self._room_ahead(room)
            if allowed > 0:
                return expansion, allowed
        fresh = bool(self.inbox) and calls < lane.concurrency
        allowed = room if not self.live or not self.ordered else self._room_ahead(room)
        if fresh and allowed > 0 and len(self.live) < lane.prefetch + lane.concurrency:
            return None, allowed
        return None

    def _room_ahead(self, room: int) -> int:
        """Give the places for expansions that work ahead: all but one for the first."""
        return room - self.gathers - (not self.live[0].held)

    def take(self, now_ns: int) -> Task | None:
        """Choose an expansion to draw from, or begin a new one."""
        choice = self._choose()
        if choice is None:
            return None
        expansion, allowed = choice
        if expansion is None:
            entry = self.inbox.popleft()
            self.epoch.release((entry,))
            expansion = Expansion(self.seq_in, entry)
            expansion.wanted = self.children.begin(self.seq_in, entry[0])
            self.seq_in += 1
            self.live.append(expansion)
            self.lane.counters.items_in += 1
            self.freed(now_ns)
        expansion.held = True
        task = Task(self, expansion.seq, deque(), self.chunk(allowed, allowed))
        task.expansion = expansion
        task.drawn = expansion.drawn
        self.reserved += task.quota
        return self.started(task, now_ns)

    def work(self, task: Task) -> None:
        """Draw up to the quota."""
        expansion, give, rest = task.expansion, task.results.append, self.rest
        assert expansion is not None
        try:
            if expansion.entries is None:
                self.opener.open(expansion)
            draw = expansion.entries.__next__
        except BaseException as error:
            self._failed(task, expansion, error)
            return
        for _ in range(task.quota):
            try:
                entry = draw()
            except StopIteration:
                expansion.over = True
                return
            except BaseException as error:
                self._failed(task, expansion, error)
                return
            give(task.through(entry, rest) if rest else entry)

    async def work_elsewhere(self, task: Task) -> None:
        """Draw up to the quota from an async iterator."""
        expansion = task.expansion
        assert expansion is not None
        try:
            if expansion.entries is None:
                await self.opener.open_async(expansion)
            for _ in range(task.quota):
                task.results.append(await expansion.entries.__anext__())
        except StopAsyncIteration:
            expansion.over = True
        except BaseException as error:
            self._failed(task, expansion, error)

    def _failed(self, task: Task, expansion: Expansion, error: BaseException) -> None:
        failure = self.opener.recover(expansion, error, task)
        if failure is None:  # to be opened again, past the children already given
            return
        expansion.over = task.irregular = True
        task.results.append(failure)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on what was drawn, or keep it until its turn."""
        expansion = task.expansion
        assert expansion is not None
        if self.done:
            return
        if final:
            self.reserved -= task.quota - at
            expansion.held = False
        else:
            self.reserved -= len(results)
        expansion.drawn += len(results) - (1 if task.irregular and results else 0)
        if not self.ordered or self.live[0] is expansion:
            self._hand_on(expansion, results, now_ns, irregular=task.irregular)
        else:
            expansion.buffer.extend(results)
            expansion.irregular = expansion.irregular or task.irregular
            self.buffered += len(results)
        self._next_in_order(now_ns)

    def _next_in_order(self, now_ns: int) -> None:
        if not self.ordered:
            for x in [x for x in self.live if x.over and not x.held]:
                self.children.end(x.seq)
                self.live.remove(x)
                self.epoch.dropped.append(x)
            return
        while self.live and not self.done and self.live[0].over and not self.live[0].held:
            ended = self.live.pop(0)
            self.epoch.dropped.append(ended)
            self.children.end(ended.seq)
            if self.live and self.live[0].buffer:
                following = self.live[0]
                self.buffered -= len(following.buffer)
                results, following.buffer = following.buffer, []
                self.epoch.dropped.append(results)
                self._hand_on(following, results, now_ns, irregular=following.irregular)

    def _hand_on(
        self, expansion: Expansion, results: list[Any], now_ns: int, *, irregular: bool
    ) -> None:
        first = self.seq_out
        self.seq_out += len(results)
        self.emit(results, now_ns, irregular=irregular)
        if not self.source:
            kept = sum(type(one) is tuple for one in results) if irregular else len(results)
            self.children.note(expansion.seq, kept)
        elif irregular:
            self.drops.note(first, results)

    def rest_of_input(self, rest: Rest, stages: Stages) -> Rest:
        """Say which inputs, and which children of those in work, are wanted."""
        address = self.lane.address
        if self.source:
            self.opener.note(self.drops.inputs(rest), stages.setdefault(address, {}))
            return rest
        inputs, parts = self.children.inputs(rest)
        if parts:
            stages.setdefault(address, {})["children"] = parts
        return inputs

    @property
    def dropped(self) -> int:
        """Items of a source that the inline stages behind it dropped."""
        return self.drops.count

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Forget whose children the results are that nobody wants any more."""
        start = min(rest.start for rest in below.values())
        (self.drops if self.source else self.children).forget(start)

    def exhausted(self) -> bool:
        """Say whether every expansion came to its end."""
        return not self.inbox and not self.live

    def let_go(self) -> None:
        """Hold no items any more, nor results that wait for others."""
        super().let_go()
        for x in self.live:
            self.epoch.dropped.append(x.buffer)
            x.buffer = []

    def halt(self) -> None:
        """Stop, and have the open iterators closed."""
        super().halt()
        self.epoch.litter.extend(x for x in self.live if not x.held)
