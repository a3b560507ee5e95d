"""A session in virtual time: whose knobs it turns, what it takes back, and where it stops."""

import dataclasses

import pytest

from nbpipe.base.knobs import Knob
from nbpipe.tune.board import Board
from nbpipe.tune.point import Point
from nbpipe.tune.session import TuningSession
from tests.tune.kinds import KINDS
from tests.tune.model import LOOK_S, Loop, Model, tuned


class Ride:
    """A model and its session, to be driven step by step."""

    def __init__(
        self, kind="io", *, keep=(), most=64, memory=None, seed=0, ranks=1, budget=None, **first
    ):
        made = KINDS[kind](seed) if isinstance(kind, str) else kind
        for one in made.servings:
            one.calls = first.get(one.name, one.calls)
        self.model = Model(made, seed)
        self.board = Board(
            self.model.addresses, cores=made.cores, keep=keep, most=most, budget=budget
        )
        self.session = TuningSession(self.board, memory_bytes=memory, ranks=ranks)
        self.looks = 0

    def go(self, until, **changes):
        """Continue until a time, or until a condition holds."""
        while not until() if callable(until) else self.model.now_s < until:
            self.looks += 1
            assert self.looks < 4000
            self.model.advance(self.looks * LOOK_S)
            self.session.look(self.model.observe()._replace(**changes))

    def knob(self, name="read.concurrency"):
        """Return a knob of the model."""
        stage, word = name.rsplit(".", 1)
        return self.model.addresses[stage].knob(word)


def outcomes(ride):
    """Return the turns of a session: old, new, and whether they were taken back."""
    return [(one.old, one.new, one.taken_back) for one in ride.session.log if one.knob]


def test_calls_are_raised_until_the_loop_keeps_up():
    """The reasons have the numbers, and are those of the changes."""
    ride = Ride()
    ride.go(20)
    changes = [one for one in ride.session.log if one.knob]
    assert ride.session.state == "keeps up"
    assert changes[0].text.endswith("%; 4 calls keep its pace")
    assert (changes[0].old, changes[0].new) == (1, 4)
    assert ride.knob().last_change.by == "autotune"
    assert ride.knob().last_change.why == changes[-1].text


def test_a_loop_that_does_nothing():
    """It waits all the time: each stage gets as many calls as help."""
    made = KINDS["io"](0)
    made.loop = Loop(step_s=lambda *_: 0.0)
    ride = Ride(made)
    ride.go(30)
    assert ride.knob().value > 8


def test_a_knob_that_a_person_turns_is_left_alone():
    """Also in the middle of a search, and for good: the rest is tuned beside it."""
    ride = Ride("mixed")
    ride.go(lambda: ride.knob("fetch.concurrency").value > 1)
    ride.knob("fetch.concurrency").set(2, by="panel")
    ride.go(40)
    assert ride.knob("fetch.concurrency").value == 2
    notes = [str(one) for one in ride.session.log]
    assert "fetch.concurrency was changed by panel: it is left alone from now on" in notes


def test_a_long_pause_of_the_loop_is_not_idleness():
    """While the loop takes nothing for a minute, as in a validation, no calls are taken away."""
    made = KINDS["io"](0)
    made.loop = Loop(lambda _, count: 60.0 if count == 800 else 0.02)
    ride = Ride(made)
    ride.go(lambda: ride.model.taken == 800)
    before, calls = outcomes(ride), ride.knob().value
    ride.go(ride.model.now_s + 80)
    assert outcomes(ride) == before
    assert ride.knob().value == calls > 8


def test_stages_to_keep_and_the_most_calls():
    """They bound what is turned."""
    ride = Ride("mixed", keep=["decode"], most=5)
    ride.go(40)
    assert ride.knob("decode.concurrency").value == 1
    assert ride.knob("fetch.concurrency").value <= 5


@pytest.mark.parametrize("state", ["paused", "stopped", "failed", "cancelled"])
def test_a_trial_is_taken_back(state):
    """A pause, a stop or an error in the middle of a trial restores the values before it."""
    ride = Ride()
    ride.go(lambda: ride.knob().value > 1)
    ride.go(ride.model.now_s + LOOK_S, state=state)
    assert ride.knob().value == 1
    ride.go(ride.model.now_s + 20)  # it continues
    assert ride.knob().value > 8


def test_the_end_of_an_epoch_is_no_interruption():
    """A trial stays over the edge of an epoch, and is measured in the next one."""
    ride = Ride()
    ride.go(lambda: ride.knob().value > 1)
    ride.go(ride.model.now_s + LOOK_S, state="finished")
    assert ride.knob().value == 4
    ride.go(ride.model.now_s + 20, epoch=1)
    assert ride.knob().value > 8


def test_undo_restores_what_was_not_changed_since():
    """What a person turned meanwhile stays."""
    ride = Ride("mixed")
    ride.go(20)
    ride.knob("decode.concurrency").set(9, by="code")
    ride.session.undo()
    values = [ride.knob(f"{name}.concurrency").value for name in ("fetch", "decode", "augment")]
    assert values == [1, 9, 1]


def test_memory_that_is_unknown_stops_raises():
    """With a ceiling and no reading of the memory, no knob is raised."""
    ride = Ride("io", memory=10**9)
    ride.go(10, resident_bytes=None)
    assert ride.knob().value == 1


def test_foreign_memory_is_not_answered_for_ever():
    """Two cuts that free nothing end the cuts: the memory belongs to something else."""
    ride = Ride("memory", memory=10**9)
    ride.go(15)
    before = ride.knob("load.concurrency").value
    ride.go(20, resident_bytes=990_000_000)
    after = ride.knob("load.concurrency").value, ride.knob("load.prefetch").value
    ride.go(40, resident_bytes=990_000_000)
    assert (ride.knob("load.concurrency").value, ride.knob("load.prefetch").value) == after
    assert before >= after[0] >= 1


def test_the_ceiling_holds_while_items_grow():
    """Buffers are cut first, calls after them, never below what was written."""
    done = tuned(KINDS["growing"], 1)
    assert done.peak <= KINDS["growing"](1).memory_bytes
    assert any("memory: " in why for *_, why in done.turns)


def test_rates_before_and_after():
    """A turn has the rate that was measured before it, and the next one after it."""
    ride = Ride()
    ride.go(20)
    first = next(one for one in ride.session.log if one.knob)
    assert 0 < first.rate < first.after
    assert all(one.after > 0 for one in ride.session.log if one.knob)


def test_trials_that_were_taken_back_are_marked():
    """With a lock, four calls are one too many; the turn that gave the value that stays is not."""
    ride = Ride("lock")
    ride.go(40)
    first, *_, last = outcomes(ride)
    assert first == (1, 4, True)
    assert last[1:] == (ride.knob("query.concurrency").value, False)


def test_an_interrupted_trial_is_marked():
    """It is taken back; so is all that was undone."""
    ride = Ride()
    ride.go(lambda: ride.knob().value > 1)
    assert outcomes(ride) == [(1, 4, False)]
    ride.go(ride.model.now_s + LOOK_S, state="paused")
    assert outcomes(ride) == [(1, 4, True), (4, 1, True)]
    ride.go(ride.model.now_s + 20)
    assert not outcomes(ride)[-1][2]
    ride.session.undo()
    assert {taken_back for *_, taken_back in outcomes(ride)} == {True}


def test_a_decision_prints_as_a_sentence():
    """With a knob, its change comes first."""
    ride = Ride()
    ride.go(20)
    first, *_, last = ride.session.log
    assert str(first).startswith("read.concurrency 1 → 4: ")
    assert str(last).startswith("keeps up: ")
    with pytest.raises(dataclasses.FrozenInstanceError):
        last.text = ""


def point_of(*, busy=0.5, starved=0.5, blocked=0.0, wait=0.5, cores=0.0):
    """Return what a window measured of a stage read."""
    shares = {"busy": busy, "starved": starved, "blocked": blocked, "held": 0.0, "cores": cores}
    return Point(
        *(0.0, 10.0, 20.0, 0.1, wait, 0.05),
        slots_s={"read": 1.0},
        calls={"read": 9},
        **{name: {"read": share} for name, share in shares.items()},
    )


# -- limits ----------------------------------------------------------------------------------------


def notes(ride):
    """Return what was decided, without the knobs."""
    return [one.text for one in ride.session.log if not one.knob]


@pytest.mark.parametrize(("ranks", "calls"), [(1, 20), (8, 40)])
def test_ranks_that_wait_for_one_another_keep_their_calls(ranks, calls):
    """Only a rank that waits for its data knows what fewer calls cost."""
    ride = Ride("io", ranks=ranks, read=40)
    ride.go(30)
    value = ride.knob("read.concurrency").value
    assert value <= calls
    assert (value == 40, "no stage gets fewer calls" in " ".join(notes(ride))) == ((ranks > 1,) * 2)


def test_a_rank_that_waits_tunes():
    """It raises its calls, and takes back what did not help."""
    ride = Ride("lock", ranks=8)
    ride.go(40)
    alone = Ride("lock")
    alone.go(40)
    assert ride.knob("query.concurrency").value == alone.knob("query.concurrency").value


def test_a_worker_pays_back_its_start():
    """Shortly before the end of an epoch none is started; in the next epoch some are."""
    ride = Ride("python_processes")
    ride.go(8, left=10)
    assert ride.knob("parse.concurrency").value == 1
    assert notes(ride).count("the epoch ends soon: no worker is started") == 1
    ride.go(20, left=1000, epoch=1)
    assert ride.knob("parse.concurrency").value > 1


def test_the_end_of_an_epoch_is_not_measured():
    """While buffers drain, nothing is decided."""
    ride = Ride()
    ride.go(2.5)
    before = len(ride.session.log)
    ride.go(12, left=0)
    assert len(ride.session.log) == before


def test_one_core_less_where_the_loop_computes():
    """Stages that compute get the cores that the loop leaves, however much they could use."""
    found = []
    for loop_cpu in (0.0, 1.0):
        ride = Ride("consumer")
        ride.go(5)
        point = point_of(wait=0.0, cores=0.9)
        ride.board.cores, ride.board.loop_cpu = 9.0, loop_cpu
        found.append(
            (ride.board.limit("read", point), ride.board.within_cores({"read": 64}, point))
        )
    assert found == [(11, {"read": 10}), (10, {"read": 9})]


def test_the_budget_is_raised_where_calls_wait_for_room():
    """Below the ceiling it doubles; one that a person set is left alone."""
    budget = Knob("memory", 40_000_000, minimum=0, maximum=10**12, unit="bytes")
    ride = Ride("io", memory=10**9, budget=budget, most=1)
    known = {"held_bytes": 39_000_000, "resident_bytes": 920_000_000}
    ride.go(4, **known)
    assert budget.value == 40_000_000
    full = point_of(busy=0.3, starved=0.1, blocked=0.0)
    assert ride.session.guard.widen(full)
    assert budget.value == pytest.approx(40_000_000 + 30_000_000 / 1.2)  # 95% of the ceiling
    assert budget.last_change.why == "calls wait for room 60%, and the loop waits 50%"
    budget.set(50_000_000, by="code")
    ride.go(8, **known)
    assert not ride.session.guard.widen(full)
    assert "memory was changed by code: it is left alone from now on" in notes(ride)


def test_the_budget_is_lowered_near_the_ceiling():
    """It is a wall for what the buffers hold; undo restores it."""
    budget = Knob("memory", 400_000_000, minimum=0, maximum=10**12, unit="bytes")
    ride = Ride("io", memory=10**9, budget=budget)
    ride.go(2, held_bytes=300_000_000, resident_bytes=980_000_000)
    assert budget.last_change.why == "memory: 980 MB of 1 GB"
    assert budget.value <= 225_000_000
    ride.session.undo()
    assert budget.value == 400_000_000


def test_memory_of_other_runs_counts():
    """What their buffers may still take is not free."""
    ride = Ride("memory", memory=10**9)
    ride.session.guard.others_bytes = lambda: 900_000_000.0
    ride.go(15)
    assert ride.knob("load.concurrency").value == 1


def test_foreign_memory_is_reported():
    """Once, when two cuts freed nothing."""
    ride = Ride("memory", memory=10**9)
    ride.go(15)
    ride.go(30, resident_bytes=990_000_000)
    said = "memory is near its ceiling, and no knob frees any: nothing is raised"
    assert notes(ride).count(said) == 1


@pytest.mark.parametrize(("grown", "calls"), [(16, (8, 16)), (160, (1, 1))])
def test_items_that_grow_are_no_foreign_memory(grown, calls):
    """What cuts free does not show while results grow: cuts go on, down to what was written."""
    ride = Ride("memory", memory=10**9)
    ride.board.set(ride.knob("load.concurrency"), 16, "as it was")
    guard, one = ride.session.guard, ride.model.observe()
    for second in range(1, 60):
        size = 16 if second < 3 else grown
        stats = {
            name: dataclasses.replace(row, item_bytes=size * 10**6)
            for name, row in one.stats.items()
        }
        resident = 500_000_000 if second < 3 else 990_000_000
        guard.look(one._replace(time_s=float(second), stats=stats, resident_bytes=resident), 0.01)
    least, most = calls
    assert least <= ride.knob("load.concurrency").value <= most
