"""A fresh process with other executors and knobs goes on from states cut at every batch."""

import json

import pytest

from tests.chains import Hands
from tests.resume.checking import state_at, uninterrupted
from tests.scripts import printed

pytestmark = pytest.mark.slow

SEED = 11
HERE = Hands(("thread", "inline"), (2,), (5,))
THERE = Hands(("process", "coroutine", "thread"), (2, 3), (2, 7))
RECIPES = {
    "images": [
        ["dataset", 90],
        ["shuffle", 1],
        ["shard", 0, 2, "pad"],
        ["map", 1],
        ["noise", 9],
        ["failing", 5],
        ["batch", 3, True],
    ],
    "stream": [
        ["generator", 40],
        ["filter", 4],
        ["flat_map", 3],
        ["shuffle", 2, 7],
        ["noise", 5],
        ["window", 3, 2],
        ["batch", 2, False],
    ],
    "mix": [
        [
            "mix",
            [
                [["range", 12], ["shuffle", 1], ["map", 1]],
                [["async", 9], ["filter_some"]],
                [["interleave", [[["list", 4]], [["generator", 5], ["flat_map", 2]]], 2]],
            ],
            [1, 2, 1],
            "longest",
            5,
        ],
        ["shuffle", 3, 4],
        ["retried"],
        ["batch", 3, False],
    ],
    "repeat": [
        ["concat", [[["range", 6], ["failing", 3]], [["list", 5], ["noise", 4]]]],
        ["shuffle", 1, 4],
        ["repeat", 3],
        ["route", 2],
        ["batch_by_cost", 6, False],
    ],
    "streams": [
        ["zip", [[["generator", 30], ["noise", 3]], [["range", 30], ["filter", 5]]]],
        ["enumerate"],
        ["shard", 1, 2, "drop"],
        ["skip", 1],
        ["unbatch"],
        ["take", 9],
    ],
}


def gone_on(recipe, states, hands=THERE, *, isolate=False):
    """Give what a fresh process makes of each state."""
    asked = {
        "recipe": recipe,
        "hands": hands.data,
        "seed": SEED,
        "isolate": isolate,
        "states": states,
    }
    return json.loads(printed("-m", "tests.resume.going_on", data=json.dumps(asked)))


def check(recipe, **options):
    """Cut at every batch, go on in a fresh process, compare the whole and the next epoch."""
    (items, error), following = uninterrupted(recipe, HERE, seed=SEED)
    parts = [state_at(recipe, HERE, cut, "keep", seed=SEED) for cut in range(len(items) + 1)]
    later = gone_on(recipe, [state for _, state in parts], **options)
    wholes = [got + rest for (got, _), ((rest, _), _) in zip(parts, later, strict=True)]
    ends = [end for (_, end), _ in later]
    assert len(items) > 4
    assert wholes == [items] * len(parts)
    assert ends == [error] * len(parts)
    assert [next_one for _, next_one in later] == [list(following)] * len(parts)


@pytest.mark.parametrize("word", RECIPES)
def test_another_process_with_other_executors(word):
    """Threads here, worker processes and coroutines there: the sequence is the same."""
    check(RECIPES[word])


@pytest.mark.parametrize("word", ["images", "stream"])
def test_another_process_isolated(word):
    """A run whose stages live in a process of their own goes on from the same states."""
    check(RECIPES[word], hands=Hands(("thread",), (3,), (4,)), isolate=True)
