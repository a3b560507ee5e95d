import copy
import functools
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.base.seeding import Permutation, generator_for, order_generator, seed_for, uniforms

KEY = (0, 1, "decode", 5)
PATHS = st.integers(0, 2**40) | st.tuples(st.integers(0, 9), st.integers(0, 9))
GOLDEN = [
    [8639483540410221340, 16607013411120891694],
    [11666379374290689331, 12860358983244437646],
    [11889877333549250935, 11378887319782349535],
    [16090943577013941629, 5333633253354169307],
    9915252712482047849,
]
KEYS = st.tuples(st.integers(), st.integers(0, 99), st.text(max_size=4), PATHS)


def bits(generator):
    """Give the first numbers of a generator, which no change of numpy's methods touches."""
    return generator.bit_generator.random_raw(2).tolist()


def test_golden_bits():
    """The same item has the same numbers on every machine, in every version."""
    got = [
        bits(generator_for(0, 0, "decode", 0)),
        bits(generator_for(2**70, 3, "a/b_2", (7, 1))),
        bits(generator_for(-1, 0, "é\ud800", 0)),
        bits(order_generator(0, 0)),
        seed_for(0, 0, "decode", 0),
    ]
    assert got == GOLDEN


@given(KEYS, KEYS)
def test_keys_apart(one, other):
    """Two items share their numbers only where they are one item."""
    same = bits(generator_for(*one)) == bits(generator_for(*other))
    assert (one == other) == same


def test_purposes_apart():
    """Items, orders and seeds share no numbers."""
    item = bits(generator_for(0, 0, "", 0))
    assert len({*item, *bits(order_generator(0, 0)), seed_for(0, 0, "", 0)}) == 5


def test_path_forms():
    """A path of one element is its element, and numpy's ints are ints."""
    paths = [5, (5,), np.int64(5), (np.int32(5),)]
    assert [bits(generator_for(0, 0, "a", path)) for path in paths] == 4 * [
        bits(generator_for(0, 0, "a", 5))
    ]


def test_pass_zero():
    """The first pass of a repeat has the order of an epoch without repeat."""
    assert bits(order_generator(1, 2)) == bits(order_generator(1, 2, (0,)))


def test_seed_range():
    """Seeds are different ints of 64 bits, each of which is drawn both ways."""
    seeds = [seed_for(0, 0, "a", path) for path in range(200)]
    ones = functools.reduce(operator.or_, seeds)
    zeros = functools.reduce(operator.or_, (~seed for seed in seeds))
    assert (ones, zeros, len(set(seeds))) == (2**64 - 1, -1, 200)


def test_generator_is_whole():
    """A generator can be pickled, copied and spawned, with the same numbers each time."""
    one = generator_for(*KEY)
    pickled, copied = pickle.loads(pickle.dumps(one)), copy.deepcopy(one)
    spawned = [bits(generator_for(*KEY).spawn(2)[1]) for _ in range(2)]
    first = bits(one)
    assert (first, first, spawned[0]) == (bits(pickled), bits(copied), spawned[1])


def test_other_bit_generators():
    """The seed sequence inside serves any bit generator, and draws differ from the key."""
    sequence = generator_for(*KEY).bit_generator.seed_seq
    drawn = [np.random.Generator(np.random.PCG64(sequence)).random() for _ in range(2)]
    assert drawn[0] == drawn[1]


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_permutation_is_a_bijection(length, seed):
    """Every row has one image, and every image one row."""
    permutation = Permutation(length, order_generator(seed, 0))
    assert list(range(length)) == sorted(permutation[np.arange(length)].tolist())


@given(st.integers(2**20, 2**62), st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_permutation_of_many(length, rows):
    """Images of a long permutation lie in range, and equal only for equal rows."""
    rows = np.array(rows) % length
    images = Permutation(length, order_generator(0, 0))[rows]
    assert len(set(rows.tolist())) == len(set(images.tolist()))
    assert ((images >= 0) & (images < length)).all()


@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 1000, 1025])
def test_permutation_is_even(length):
    """Over many keys each row goes everywhere, and neighbours go their own ways."""
    images = np.array(
        [Permutation(length, order_generator(seed, 0))[np.arange(8)] for seed in range(1000)]
    )
    scaled = (images + 0.5) / length - 0.5  # mean 0, variance 1/12
    means = np.abs(scaled.mean(axis=0)) * np.sqrt(12 * 1000)
    shared = np.abs(np.corrcoef(scaled.T) - np.eye(8)) * np.sqrt(1000)
    assert means.max() < 4
    assert shared.max() < 4.5


def test_uniform_numbers():
    """They are those of SplitMix64: its first outputs for the state 1234567 are published."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = uniforms(np.uint64(1234567), np.arange(3))
    assert [int(number * 2**53) for number in got] == [number >> 11 for number in published]
