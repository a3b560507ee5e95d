import functools
import gc
import sys
import weakref
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.base.threads import FREE_THREADED
from nbpipe.base.tree import children, copy_leaves, leaves, map_leaves, rebuild, size_bytes
from nbpipe.errors import ArgumentError
from tests.samples import Pair, Sample


class Row(list):
    """A list of its own kind."""


class Stubborn(tuple):
    """A tuple that is made from two values, not from one iterable."""

    __slots__ = ()

    def __new__(cls, left, right):
        return super().__new__(cls, (left, right))


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    label: Any = 0


@dataclass
class Halved:
    value: float
    calls: int = field(default=0, init=False)

    def __post_init__(self):
        self.value = self.value / 2
        self.calls += 1


@dataclass
class Lazy:
    values: list

    @functools.cached_property
    def total(self):
        return sum(self.values)


TREES = st.recursive(
    st.integers() | st.text() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Sample, inner, inner)
    ),
    max_leaves=20,
)


def double(leaf):
    """Double a leaf."""
    return leaf * 2


@given(TREES)
def test_identity(tree):
    """A tree mapped by the identity is an equal tree of new containers."""
    mapped = map_leaves(lambda leaf: leaf, tree)
    assert (type(tree), tree) == (type(mapped), mapped)


@given(TREES)
def test_leaves_in_order(tree):
    """Leaves come in the order in which they are mapped."""
    seen = []
    map_leaves(seen.append, tree)
    assert seen == list(leaves(tree))


@given(TREES)
def test_children_and_rebuild(tree):
    """A node can be taken apart and built again."""
    held = children(tree)
    again = tree if held is None else rebuild(tree, [value for _, value in held])
    assert tree == again


@pytest.mark.parametrize(
    ("tree", "mapped"),
    [
        ({"a": 1, "b": [2, (3,)]}, {"a": 2, "b": [4, (6,)]}),
        (Pair(1, [2]), Pair(2, [4])),
        (Sample(1, {"x": 2}), Sample(2, {"x": 4})),
        (Frozen(1, (2,)), Frozen(2, (4,))),
        (OrderedDict(b=1, a=2), OrderedDict(b=2, a=4)),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
        (UserDict(a=1), UserDict(a=2)),
        (Counter("aab"), Counter("aaaabb")),
        (Row([1, 2]), Row([2, 4])),
        ((), ()),
        ({1, 2}, None),
    ],
)
def test_types_are_kept(tree, mapped):
    """Each kind of container is rebuilt as its own type; a set is a leaf."""
    fn = double if mapped is not None else lambda leaf: None
    result = map_leaves(fn, tree)
    assert (type(mapped), mapped) == (type(result), result)


def test_default_factory_is_kept():
    """A defaultdict keeps its factory."""
    tree = defaultdict(list, a=1)
    assert map_leaves(double, tree)["missing"] == []
    assert tree == {"a": 1}


def test_unusual_containers_fall_back():
    """A container that cannot be rebuilt as its type becomes a plain one."""

    class Odd(UserDict):
        def __copy__(self):
            raise TypeError

    result = [map_leaves(double, Stubborn(1, 2)), map_leaves(double, Odd(a=1))]
    assert [((2, 4), tuple), ({"a": 2}, dict)] == [(tree, type(tree)) for tree in result]


def test_other_objects_are_leaves():
    """Strings, arrays, classes and containers of other kinds are leaves."""
    tree = ["text", np.zeros(2), Sample, UserList([1]), range(3)]
    assert [id(leaf) for leaf in tree] == [id(leaf) for leaf in leaves(tree)]


def test_post_init_does_not_run_again():
    """A dataclass is copied field by field."""
    sample = Halved(8.0)
    mapped = map_leaves(lambda leaf: leaf, sample)
    assert (mapped.value, mapped.calls, sample.value) == (4.0, 1, 4.0)


def test_extra_attributes_are_kept():
    """What was set on a dataclass beside its fields stays, but no value computed from them."""
    sample = Lazy([1, 2])
    sample.note = "kept"
    totals = sample.total, map_leaves(double, sample).total
    assert (*totals, map_leaves(double, sample).note) == (3, 6, "kept")


def test_unset_field():
    """A field that has no value yet has none in the copy."""
    sample = Sample(1)
    del sample.image
    mapped = map_leaves(double, sample)
    assert list(vars(mapped)) == ["label"]


@pytest.mark.parametrize("kind", [list, dict, Sample])
def test_cycles_are_refused(kind):
    """A container that contains itself is refused by name, not followed for ever."""
    loop = Sample(None) if kind is Sample else kind()
    if kind is list:
        loop += [loop, loop]
    elif kind is dict:
        loop.update(a=loop, b=loop)
    else:
        loop.image = loop.label = loop
    errors = []
    for act in (lambda: map_leaves(double, loop), lambda: list(leaves(loop))):
        with pytest.raises(ArgumentError, match=f"at most 64 levels.*{kind.__name__}") as caught:
            act()
        errors.append(caught)
    assert size_bytes(loop) > 0
    assert len(errors) == 2


def test_depth_that_is_allowed():
    """64 levels of nesting are mapped."""
    tree = 1
    for _ in range(64):
        tree = [tree]
    assert list(leaves(map_leaves(lambda leaf: leaf, tree))) == [1]


def test_copy_leaves():
    """Arrays are copied in their layout and type, leaves of an unknown class are shared."""
    array, other = np.asfortranarray(np.arange(6).reshape(2, 3)), object()
    copied = copy_leaves({"a": array, "b": [other]})
    array[0, 0] = 9
    assert (0, True, other) == (copied["a"][0, 0], copied["a"].flags.f_contiguous, copied["b"][0])


def test_copy_of_a_memory_map(tmp_path):
    """The copy of a memory-mapped array holds its own memory."""
    np.save(tmp_path / "a.npy", np.arange(3))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    copied = copy_leaves(mapped)
    assert (np.ndarray, [0, 1, 2], True) == (type(copied), copied.tolist(), copied.flags.owndata)


def test_copy_and_size_of_tensors(torch):
    """Tensors are copied, and measured by their elements."""
    tensor = torch.arange(4, dtype=torch.float32)
    copied = copy_leaves([tensor])[0]
    tensor[0] = 9
    assert (copied[0].item(), size_bytes(tensor), size_bytes(tensor[:2])) == (0.0, 16, 8)


def test_copies_of_images(tmp_path):
    """One that was just opened is read for its copy; one of several frames is shared."""
    images = pytest.importorskip("PIL.Image")
    frames = [images.new("L", (4, 2), shade) for shade in (1, 2)]
    frames[0].save(tmp_path / "still.png")
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    with images.open(tmp_path / "still.png") as still, images.open(tmp_path / "moving.gif") as gif:
        copied, shared = copy_leaves([still, gif])
        still.thumbnail((2, 2))
        assert (copied.size, shared is gif) == ((4, 2), True)


def test_copy_of_a_tensor_that_wants_gradients(torch):
    """A copy has gradients of its own, and hands none to the tensor that it was made of."""
    tensor = torch.ones(2, requires_grad=True)
    copied = copy_leaves(tensor)
    copied.sum().backward()
    assert (tensor.grad, copied.grad.tolist()) == (None, [1, 1])


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (np.zeros((3, 4), np.float32), 48),
        (np.zeros((10, 4), np.float32)[::2], 80),
        (np.float32(1), 4),
        (b"abc", 3),
        ("abcd", 4),
        (bytearray(5), 5),
        (memoryview(bytes(6)), 6),
        ({"a": np.zeros(4), "b": [np.zeros(2), b"xy"]}, 32 + 16 + 2),
        (Sample(np.zeros(4), b"x"), 33),
        (Pair(b"x", b"yz"), 3),
        ([np.zeros(4)] * 32, 32 * 32),
        ([b"1234"] * 1_000_000, 4_000_000),
        (dict.fromkeys(range(1000), b"12"), 2000),
        ({b"1", b"2"}, 2),
        ([], 0),
    ],
)
def test_size(value, size):
    """Sizes of arrays, texts and containers are sums."""
    assert size == size_bytes(value)


@pytest.mark.parametrize("value", [1, 1.5, None, True, 1j, object(), Sample, len])
def test_size_of_small_things(value):
    """Numbers and other objects have a small size."""
    assert 0 < size_bytes(value) < 2000


def test_size_of_object_array():
    """An object array counts what it holds."""
    array = np.empty(2, object)
    array[:] = [bytes(100), bytes(200)]
    assert size_bytes(array) == 2 * 8 + 300


def test_size_is_estimated_at_a_bounded_cost():
    """A large nesting is sampled: few of its values are looked at, and the estimate is near."""
    calls = []
    tree = [[[bytearray(10)] * 100 for _ in range(100)] for _ in range(100)]
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    try:
        size = size_bytes(tree)
    finally:
        sys.setprofile(None)
    assert 5e6 < size < 2e7
    assert len(calls) < 4000


def test_size_never_raises():
    """What cannot be measured still has a size."""
    rows = Frozen(b"xy")
    object.__delattr__(rows, "label")
    cyclic = Sample(None)
    cyclic.image = cyclic
    assert size_bytes(rows) == 2
    assert size_bytes(cyclic) > 0


class Guarded:
    """Fails the test when anything of it is asked."""

    def __getattribute__(self, name):
        raise AssertionError(name)


for _name in ("len", "iter", "bool", "eq", "hash", "repr", "sizeof"):
    setattr(Guarded, f"__{_name}__", lambda self: self.touched)


class GuardedDict(dict):
    """The same, as a dict."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    __len__ = __iter__ = values = items = keys = lambda self: self.touched


class GuardedArray(np.ndarray):
    """An array that computes its size itself."""

    @property
    def nbytes(self):
        raise AssertionError


@dataclass
class Computing:
    """A dataclass with a field that a property stands in front of."""

    rows: Any

    def __getattribute__(self, name):
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (Guarded, 8),
        (lambda: [Guarded(), b"x"], 9),
        (lambda: GuardedDict(a=b"xyz"), 3),
        (lambda: np.zeros(3).view(GuardedArray), 24),
        (lambda: Computing(b"xyz"), 3),
        (lambda: UserDict(a=b"xyz"), 3),
        (lambda: OrderedDict(a=b"xyz"), 3),
    ],
)
def test_size_asks_nothing_of_an_object(make, size):
    """A size comes from what is known of a class's base, never from the user's own code."""
    assert size_bytes(make()) == size


def test_size_of_a_tensor_with_a_class_of_its_own(torch):
    """A tensor counts its elements, and its class is not asked."""

    class Picture(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError

    assert size_bytes([torch.zeros(4).as_subclass(Picture)]) == 16


def test_size_of_an_image():
    """A PIL image counts its pixels."""
    image = pytest.importorskip("PIL.Image").new("RGB", (20, 10))
    assert size_bytes(image) == 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: type("Other", (), {}),
        lambda: dataclass(type("Plain", (), {"__annotations__": {"rows": int}, "rows": 1})),
        lambda: dataclass(slots=True)(type("Slim", (), {"__annotations__": {"rows": int}})),
    ],
)
@pytest.mark.skipif(
    FREE_THREADED and sys.version_info < (3, 14), reason="Python keeps all classes there"
)
def test_a_class_is_not_kept(make):
    """A class that a cell defines anew goes, and all that its functions refer to."""
    kind = make()
    row = kind.__new__(kind)
    for act in (size_bytes, children, copy_leaves):
        act([row])
    gone, kind, row = weakref.ref(kind), None, None
    gc.collect()
    assert gone() is None
