"""Wake-ups: when a thread that is at work comes back soon enough, so that none has to be woken.

Without these rules W2 takes 8% more processor time and 9% more switches, and a process `map` with
a batch in threads (`apart` in `benchmarks/feed`) takes 29% more switches a batch.
"""

from __future__ import annotations

from .measures.counters import SLOW_NS, SOON_NS
from .nodes.node import Node, Task


def is_attended(node: Node, now_ns: int) -> bool:
    """Return whether a thread at work in `node` comes back soon enough for what may start there.

    One came back a moment ago, and either the next node has enough results, or little waits. Little
    waiting does not count where it is cheap to make: there may be more at any moment.
    """
    runtime, active = node.runtime, node.runtime.active
    soon = SLOW_NS < runtime.cost_ns <= SOON_NS * active and not node.remote
    if not soon or now_ns - runtime.ended_ns > SOON_NS:
        return False
    if 2 * (node.out.count - node.gathers) > runtime.prefetch:
        return True
    if node.active_without_input or node.inbox.count > active:
        return False
    return bool(node.upstream) and node.upstream[0].runtime.cost_ns > SLOW_NS


def take_again(node: Node, now_ns: int) -> Task | None:
    """Choose another task of `node` for a thread that was at work there, if it need not continue.

    Threads at work in the next node are about to come back for the results. If this thread took
    them, another one would have to be woken for its place here.
    """
    following, count = node.downstream, node.out.count
    if not count or following is None or count > following.runtime.active:
        return None
    if node.epoch.memory is not None or not is_attended(following, now_ns):
        return None
    task = node.take(now_ns)
    if task is not None:
        task.watched = True  # a call there may hang
    return task
