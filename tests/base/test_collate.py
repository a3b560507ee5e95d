from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError
from tests.samples import Colour, Pair, Sample


def collate(samples, **options):
    """Make one batch of samples; raise what its stage failed with."""
    try:
        (batch,) = nbpipe.source(samples).batch(len(samples), **options)
    except nbpipe.StageError as error:
        raise error.__cause__ from None
    return batch


def flat(value):
    """List what a batch holds, in order."""
    if isinstance(value, dict | Deep):
        value = list((value if isinstance(value, dict) else vars(value)).values())
    return (
        [leaf for one in value for leaf in flat(one)]
        if isinstance(value, list | tuple)
        else [value]
    )


def same(one, other):
    """Say whether two batches are equal, types and dtypes too."""
    if isinstance(one, np.ndarray):
        equal = np.array_equal(one, other, equal_nan=one.dtype.kind in "fcM")
        return type(other) is np.ndarray and one.dtype == other.dtype and equal
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(same(a, b) for a, b in pairs)
    return type(one) is type(other) and one == other


@given(
    hnp.arrays(
        st.sampled_from(["u1", "i8", "f4", "f8", "?", "c8", "M8[s]", "U3", "S2"]),
        hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=3).filter(lambda s: s[0]),
    )
)
def test_arrays_are_stacked(batch):
    """Arrays of one shape and dtype become one array with a leading axis."""
    assert same(collate(list(batch)), batch)


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        ([1, 2], np.array([1, 2], np.int64)),
        ([1.5, 2.5], np.array([1.5, 2.5])),
        ([1, 2.5], np.array([1.0, 2.5])),
        ([True, False], np.array([True, False])),
        ([1j, 2], np.array([1j, 2])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.True_, True], np.array([True, True])),
        ([np.datetime64(0, "s")], np.array([0], "M8[s]")),
        ([np.array(1), np.array(2)], np.array([1, 2])),
        ([Colour.RED, Colour.BLUE], np.array([1, 2], np.int64)),
        (["a", "b"], ["a", "b"]),
        ([b"a", None], [b"a", None]),
        ([np.str_("a")], [np.str_("a")]),
        ([(1, "a"), (2, "b")], (np.array([1, 2]), ["a", "b"])),
        ([[1], [2]], [np.array([1, 2])]),
        ([Pair(1, 2.0)], Pair(np.array([1]), np.array([2.0]))),
        ([{"a": 1, "b": (2,)}] * 2, {"a": np.array([1, 1]), "b": (np.array([2, 2]),)}),
        ([{"a": 1, "b": 2}, {"b": 4, "a": 3}], {"a": np.array([1, 3]), "b": np.array([2, 4])}),
        ([(), ()], ()),
        ([{}, {}], {}),
        (((1,), (2,)), (np.array([1, 2]),)),
        ([np.zeros(2, np.float32), np.zeros(2, np.uint8)], np.zeros((2, 2), np.float32)),
    ],
)
def test_kinds(samples, batch):
    """Each kind of sample has its kind of batch."""
    assert same(collate(samples), batch)


@pytest.mark.parametrize("other", [np.timedelta64(1, "D"), 1, 1.5])
def test_dates_beside_others_are_refused(other):
    """Numpy would count a time from 1970, and a number in days."""
    for samples in ([np.datetime64(0, "D"), other], [other, np.datetime64(0, "D")]):
        with pytest.raises(ArgumentError, match="one kind of dtype"):
            collate(samples)
    with pytest.raises(ArgumentError, match=r"timedelta64.* in sample 0 and int64 in sample 1"):
        collate([np.timedelta64(1, "D"), 1])


def test_containers_keep_their_types():
    """Mappings and dataclasses are rebuilt as their own types."""
    batches = [
        collate([OrderedDict(a=1)]),
        collate([MappingProxyType({"a": 1})]),
        collate([Sample(np.zeros(2), 3)] * 4),
    ]
    assert [type(batch) for batch in batches] == [OrderedDict, MappingProxyType, Sample]
    assert (batches[2].image.shape, batches[2].label.tolist()) == ((4, 2), [3] * 4)


@pytest.mark.parametrize("count", [1, 3])
def test_batches_share_no_memory(count):
    """A batch has memory of its own, even a batch of one."""
    samples = [{"x": np.zeros(3), "y": [np.zeros(2)]} for _ in range(count)]
    batch = collate(samples)
    plain, cast = batch["x"], collate(samples, dtype="float64", pad=0)["y"][0]
    assert not any(np.shares_memory(plain, sample["x"]) for sample in samples)
    assert not any(np.shares_memory(cast, sample["y"][0]) for sample in samples)


def test_lists_are_not_shared():
    """A list of what cannot be stacked is a new list."""
    samples = ["a", "b"]
    batch = collate(samples)
    samples.append("c")
    assert batch == ["a", "b"]


def test_names():
    """Names make a dict of the fields of tuples, lists and named tuples."""
    samples = [(1, "a"), [2, "b"], Pair(3, "c")]
    batch = collate(samples, names=["input", "target"])
    assert same(batch, {"input": np.array([1, 2, 3]), "target": ["a", "b", "c"]})


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype(">f4"), "f4"])
def test_dtype_casts_what_is_floating(dtype):
    """Floating arrays, floats and numpy scalars are cast; ints, bools and texts are not."""
    sample = (np.zeros(2), 1.5, np.float16(1), np.arange(2), 3, True, "a", 1j)
    dtypes = [getattr(field, "dtype", None) for field in collate([sample], dtype=dtype)]
    f4, i8 = np.dtype("=f4"), np.dtype(np.int64)
    assert dtypes == [f4, f4, f4, i8, i8, np.dtype(bool), None, np.dtype("c16")]


def test_pad():
    """Ragged axes are filled at their ends, and every axis may be ragged."""
    samples = [np.ones((2, 1), np.int32), np.ones((1, 2), np.int32)]
    batch = collate(samples, pad=-1)
    assert batch.tolist() == [[[1, -1], [1, -1]], [[1, 1], [-1, -1]]]
    assert batch.dtype == np.int32


def test_pad_with_dtype():
    """Padding takes place in the dtype that is asked for."""
    batch = collate([np.ones(1), np.ones(2)], pad=np.nan, dtype="float32")
    assert same(batch, np.array([[1, np.nan], [1, 1]], np.float32))


@given(st.lists(hnp.array_shapes(min_dims=2, max_dims=2, min_side=0), min_size=1, max_size=5))
def test_padded_samples_come_back(shapes):
    """Each sample stands at the start of its row, and all else is the pad value."""
    samples = [np.full(shape, number) for number, shape in enumerate(shapes, 1)]
    batch = collate(samples, pad=0)
    cut = [row[tuple(map(slice, shape))] for row, shape in zip(batch, shapes, strict=True)]
    assert all(map(np.array_equal, cut, samples))
    assert np.count_nonzero(batch) == sum(sample.size for sample in samples)


OBJECTS = np.array([1, None])
BAD = [
    (
        [np.zeros((3, 4)), np.zeros((3, 5))],
        {},
        (
            "sample: samples must have one shape to be stacked, got (3, 4) in sample 0 and (3, 5) "
            "in sample 1; pad=value"
        ),
    ),
    ([{"a": [np.zeros(2)]}, {"a": [np.zeros((1, 1))]}], {}, "sample['a'][0]: samples must have"),
    ([np.zeros(2), np.zeros((1, 1))], {"pad": 0}, "one number of axes to be stacked, got (2,)"),
    ([Pair(0, np.zeros(2)), Pair(0, np.zeros(3))], {}, "sample.right: samples must have one"),
    ([Sample(np.zeros(2), 0), Sample(None, 0)], {}, "sample.image: samples must be of one type"),
    ([{"a": 1, "b": 1}, {"a": 1}], {}, "got 'a', 'b' in sample 0 and no 'b' in sample 1"),
    ([{"a": 1}, {"a": 1, "c": 1}], {}, "got 'a' in sample 0 and 'c' too in sample 1"),
    ([dict.fromkeys(range(20)), {}], {}, "got 0, 1, 10, 11, 12, 13, 14, 15, ... in sample 0"),
    ([(1, 2), (1, 2), (1,)], {}, "got tuple of 2 in sample 0 and tuple of 1 in sample 2; make"),
    ([1, None], {}, "must be of one type to be stacked, got int in sample 0 and NoneType"),
    ([True, 1], {}, "got bool in sample 0 and int in sample 1"),
    ([1, np.zeros(1)], {}, "got int in sample 0 and ndarray in sample 1"),
    ([Sample(1, 2), Pair(1, 2)], {}, "got Sample in sample 0 and Pair in sample 1"),
    ([OBJECTS, OBJECTS], {}, "and not object, to be stacked, got an object array"),
    ([np.zeros(2), OBJECTS], {}, "got float64 in sample 0 and object in sample 1"),
    ([np.array(["a"]), np.array([1])], {}, "got <U1 in sample 0 and int64 in sample 1"),
    ([np.ma.zeros(2)], {}, "got a MaskedArray; give data and mask as two fields"),
    ([2**63, 1], {}, "ints must fit int64 to be stacked, got 9223372036854775808"),
    ([np.int64(1), np.uint64(2**63)], {}, "got int64 and uint64, of which floats would be made"),
    ([np.ones(1, np.uint64), np.ones(1, np.int8)], {}, "integers must have an integer dtype"),
    ([np.uint8(1), 2**70], {}, "ints must fit int64 to be stacked, got 1180591620717411303424"),
    ([np.zeros(1, "u1"), np.zeros(2, "u1")], {"pad": -1}, "pad must be a value of uint8, "),
    ([np.zeros(1, "i8"), np.zeros(2, "i8")], {"pad": np.nan}, "pad must be a value of int64"),
    ([np.zeros(1, "i8"), np.zeros(2, "i8")], {"pad": 0.5}, "pad must be a value of int64"),
    ([(1, 2), (1,)], {"names": ("a", "b")}, "a tuple of 2 fields, got tuple of 1 in sample 1"),
    ([{"a": 1}], {"names": ("a",)}, "a tuple of 1 fields, got dict in sample 0; dicts keep"),
    ([(1, None), (1, 2)], {"names": ("a", "b")}, "field 'b': samples must be of one type"),
    ([1.0], {"dtype": "bfloat16"}, "dtype must be one that numpy has"),
]


@pytest.mark.parametrize(("samples", "options", "message"), BAD)
def test_samples_that_do_not_fit(samples, options, message):
    """Samples that cannot be stacked are refused by field, shape and number."""
    with pytest.raises(ArgumentError) as caught:
        collate(samples, **options)
    assert message in str(caught.value)


def test_way_out():
    """A refusal names the ways out, and the last one works."""
    samples = [np.zeros(1), np.zeros(2)]
    with pytest.raises(ArgumentError, match=r"pad=value .*collate=fn .*collate=list") as caught:
        collate(samples)
    assert list(samples) == samples
    assert caught.value.__cause__ is None


def test_cycles_are_refused():
    """A sample that contains itself is refused."""
    loop = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="at most 64 levels") as caught:
        collate([loop, loop])
    assert "contain itself" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"names": "ab"}, ArgumentTypeError, "names must be a tuple of field names, got 'ab'"),
        ({"names": ()}, ArgumentTypeError, "names must be a tuple of field names, got ()"),
        ({"names": (1,)}, ArgumentTypeError, "names must be strings, got (1,)"),
        ({"names": ("a", "a")}, ArgumentError, "names must differ from one another"),
        ({"dtype": "int64"}, ArgumentError, "dtype must be a floating dtype such as 'float32'"),
        ({"dtype": "floaty"}, ArgumentError, "got 'floaty'"),
        ({"dtype": []}, ArgumentError, "got []"),
        ({"pad": "0"}, ArgumentTypeError, "pad must be a number, got '0'"),
        ({"pad": np.zeros(2)}, ArgumentTypeError, "pad must be a number, got array"),
    ],
)
def test_options_are_checked(options, error, message):
    """Options are refused before there are samples."""
    with pytest.raises(error) as caught:
        nbpipe.source([(1,)]).batch(1, **options)
    assert message in str(caught.value)


def test_good_options():
    """A dtype of torch alone and a pad of numpy's are taken."""
    options = {"names": ("a", "b"), "dtype": "bfloat16", "pad": np.float32(0)}
    assert nbpipe.source([(1, 2)]).batch(1, **options)["batch"].op == "batch"


def test_tensors(torch):
    """Tensors are stacked, cast and padded as arrays are, and share no memory."""
    one, other = torch.arange(2.0), torch.arange(2.0)
    stacked = collate([(one, 1), (other, 2)])
    single = collate([one], dtype=torch.float32)
    one[0] = 9
    assert stacked[0].tolist() == [[0, 1], [0, 1]]
    assert stacked[1].tolist() == [1, 2]
    assert single.tolist() == [[0, 1]]
    padded = collate([torch.ones(1), torch.ones(2)], pad=-1, dtype="float16")
    assert (padded.dtype, padded.tolist()) == (torch.float16, [[1, -1], [1, 1]])
    ints = collate([torch.ones(2, dtype=torch.int32)], dtype=torch.bfloat16)
    assert (ints.dtype, ints.shape) == (torch.int32, (1, 2))
    assert collate([torch.ones(2)], dtype=torch.bfloat16).dtype == torch.bfloat16
    mixed = [torch.ones(1, dtype=torch.int64), torch.ones(1)]
    assert collate(mixed, dtype="float64").dtype == torch.float64
    assert collate([*mixed, torch.ones(2)], pad=0.5).tolist() == [[1, 0.5], [1, 0.5], [1, 1]]


def test_tensors_that_do_not_fit(torch):
    """Tensors are refused as arrays are."""
    bad = [
        ([torch.ones(1), torch.ones(2)], {}, "got (1,) in sample 0 and (2,) in sample 1"),
        ([torch.ones(1), np.ones(1)], {}, "got Tensor in sample 0 and ndarray in sample 1"),
        ([torch.ones(1)], {"dtype": np.longdouble}, "dtype must be one that torch has"),
        (
            [torch.ones(1, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)],
            {"pad": -1},
            "pad must be a value of uint8",
        ),
    ]
    for samples, options, message in bad:
        with pytest.raises(ArgumentError) as caught:
            collate(samples, **options)
        assert message in str(caught.value)


@dataclass(frozen=True)
class Deep:
    fields: Any
    rate: float


def test_numbers_beside_tensors_become_tensors(torch):
    """Numbers in a sample that holds a tensor anywhere are stacked to tensors, as torch does."""
    tensor, numbers = torch.ones(2), [1, 1.5, True, 2j, np.float32(3), np.uint8(4), Colour.RED]
    names = ["int64", "float64", "bool", "complex128", "float32", "uint8", "int64"]
    for sample in (
        (*numbers, tensor),
        {"image": [tensor], **{str(at): number for at, number in enumerate(numbers)}},
        Deep({"a": (tensor,), "b": numbers}, 0.5),
    ):
        given = [leaf for leaf in flat(collate([sample] * 3)) if leaf.ndim == 1]
        assert {type(leaf) for leaf in given} == {torch.Tensor}
        assert [str(leaf.dtype) for leaf in given[:7]] == [f"torch.{name}" for name in names]
        assert [leaf.tolist() for leaf in given[:7]] == [[number] * 3 for number in numbers]


def test_what_stays_beside_tensors(torch):
    """Arrays, times, words and numbers that torch has no type for stay what they are."""
    kept = (np.zeros(2), np.datetime64(0, "s"), "a", None, np.longdouble(1))
    batch = collate([(torch.ones(1), *kept)] * 2)
    assert same(batch[1:], collate([kept] * 2))
    assert type(collate([(np.ones(1), 1)])[1]) is np.ndarray


def test_options_of_numbers_beside_tensors(torch):
    """Names and a floating dtype hold for numbers beside tensors, one of torch's alone too."""
    samples = [(torch.ones(1), 1, 0.5), (torch.ones(1), 2, 1.5)]
    batch = collate(samples, names=("x", "y", "rate"), dtype="bfloat16")
    assert [batch[name].dtype for name in batch] == [torch.bfloat16, torch.int64, torch.bfloat16]
    assert [batch[name].tolist() for name in ("y", "rate")] == [[1, 2], [0.5, 1.5]]
    mixed = collate([(torch.ones(1), 1), (torch.ones(1), 1.5)], dtype=torch.float32)
    assert (mixed[1].dtype, mixed[1].tolist()) == (torch.float32, [1, 1.5])


def test_numbers_too_large_beside_tensors(torch):
    """An int that no tensor holds is refused by its field."""
    with pytest.raises(ArgumentError, match=r"sample\[1\]: ints must fit int64"):
        collate([(torch.ones(1), 2**64)])
