"""Knob: bounded, thread-safe, watched, with a memory of who set it."""

import sys
import threading

import numpy as np
import pytest

from nbpipe import Knob, KnobChange, KnobError, UnknownKnobError
from tests.gates import HANG_S


class Index:
    """Something that is an integer by `__index__`."""

    def __index__(self):
        return 6


class Liar:
    """Something whose `__index__` fails."""

    def __index__(self):
        raise TypeError("no")


def knob(value=4):
    """Make a knob."""
    return Knob("decode.concurrency", value, minimum=1, maximum=1024, unit="calls")


@pytest.mark.parametrize("value", [1, 1024, np.int64(7), np.uint8(7), Index()])
def test_any_integer_in_the_range(value):
    """Whatever is an integer is taken, and kept as an int."""
    turned = knob()
    assert (turned.set(value), type(turned.value)) == (int(value.__index__()), int)
    assert turned.value == knob(value).default


@pytest.mark.parametrize(
    "value",
    [0, 1025, -1, True, False, np.True_, 1.0, 1.5, "8", None, [], Liar(), 10**30, np.array([1, 2])],
)
def test_anything_else_raises_and_changes_nothing(value):
    """The message gives the rule, the unit and the value."""
    turned = knob()
    with pytest.raises(KnobError) as caught:
        turned.set(value)
    assert str(caught.value) == (
        f"decode.concurrency must be an int in [1, 1024] calls, got {value!r}"
    )
    assert (turned.value, turned.last_change) == (4, None)
    with pytest.raises(KnobError):
        knob(value)


def test_a_change_is_remembered():
    """The last change says when, from what to what, who and why."""
    turned = knob()
    turned.set(8, by="panel", why="slow")
    change = turned.last_change
    words = (change.knob, change.old, change.new, change.by, change.why)
    assert words == ("decode.concurrency", 4, 8, "panel", "slow")
    assert change.when_s > 0


def test_setting_the_same_value_is_no_change():
    """Watchers hear of changes only."""
    turned, heard = knob(), []
    turned.watch(heard.append)
    turned.set(4)
    assert (heard, turned.last_change) == ([], None)


def test_watchers_hear_until_they_leave():
    """A watch ends once, however often that is asked for; other watchers stay."""
    turned, one, other = knob(), [], []
    leave = turned.watch(one.append)
    turned.watch(other.append)
    turned.set(5)
    leave()
    leave()
    turned.set(6)
    assert ([change.new for change in one], [change.new for change in other]) == ([5], [5, 6])


def test_the_same_watcher_twice_leaves_once():
    """Two watches by the same function are two watches."""
    turned, heard = knob(), []
    hear = heard.append
    leave = turned.watch(hear)
    turned.watch(hear)
    leave()
    turned.set(5)
    assert [change.new for change in heard] == [5]


def test_a_watcher_may_turn_the_knob():
    """No lock is held while watchers are told."""
    turned = knob()

    def at_most_ten(change):
        if change.new > 10:
            turned.set(10, by="watcher")

    turned.watch(at_most_ten)
    turned.set(20)
    assert (turned.value, turned.last_change.by) == (10, "watcher")


def test_many_threads_turn_one_knob():
    """Every change is told once, and the changes form one chain."""
    turned, heard = knob(), []
    turned.watch(heard.append)
    start = threading.Barrier(4)
    before = sys.getswitchinterval()

    def turn(number):
        start.wait(HANG_S)
        for value in range(1, 200):
            turned.set(1 + (value * number) % 1024)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=turn, args=(number,)) for number in (1, 3, 5, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    steps = [(change.old, change.new) for change in heard]
    balance = {4: 1}
    for old, new in steps:
        balance[old] = balance.get(old, 0) - 1
        balance[new] = balance.get(new, 0) + 1
    assert {value for value, count in balance.items() if count} == {turned.value}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("value", "decode.concurrency: knob.value cannot be set; call knob.set(7)"),
        ("maximum", "decode.concurrency: knob.maximum cannot be set"),
        ("maximun", "a knob has no attribute 'maximun'; did you mean 'maximum'?"),
    ],
)
def test_nothing_else_is_set(name, said):
    """A knob is turned in one way; what cannot be set is told, and nothing changes."""
    turned = knob()
    with pytest.raises(UnknownKnobError) as caught:
        setattr(turned, name, 7)
    assert (str(caught.value), repr(turned)) == (said, repr(knob()))


def test_repr_shows_value_and_range():
    """One line says what the knob is."""
    assert repr(knob()) == "Knob(decode.concurrency=4, 1..1024 calls)"


def test_a_change_is_frozen():
    """What happened does not change."""
    with pytest.raises(AttributeError):
        KnobChange(0.0, "a", 1, 2, "code", "").new = 3
    assert KnobChange(0.0, "a", 1, 2, "code", "").new == 2
