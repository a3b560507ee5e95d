"""Named tensors of one batch size, as TensorDict has them, and tensors that cannot be stacked."""

import dataclasses
from collections.abc import MutableMapping

import pytest

import nbpipe
from nbpipe import ArgumentError, StageError

torch = pytest.importorskip("torch")


class Fields(MutableMapping):
    """Keeps the protocol of a TensorDict: torch stacks it, and its iterator gives rows."""

    def __init__(self, values, batch_size=()):
        self._values = dict(values)
        self._size = torch.Size(batch_size)
        for value in self._values.values():
            assert tuple(value.shape[: len(batch_size)]) == tuple(batch_size)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Stack fields as torch stacks tensors."""
        assert function is torch.stack
        (samples,) = args
        columns = {name: [sample[name] for sample in samples] for name, _ in samples[0].items()}
        made = {name: torch.stack(column) for name, column in columns.items()}
        return cls(made, (len(samples), *samples[0].batch_size))

    batch_size = property(lambda self: self._size)

    def __getitem__(self, name):
        return self._values[name]

    def __setitem__(self, name, value):
        self.set(name, value)

    def __delitem__(self, name):
        del self._values[name]

    def __iter__(self):
        if not self._size:
            raise TypeError("iteration over fields without a dimension")
        return iter(self.unbind(0))

    def __len__(self):
        return self._size[0] if self._size else 0

    __hash__ = None

    def keys(self):
        """Return the names."""
        return self._values.keys()

    def items(self):
        """Return names and tensors."""
        return self._values.items()

    def set(self, name, value):
        """Set a field; its shape must fit."""
        assert tuple(value.shape[: len(self._size)]) == tuple(self._size)
        self._values[name] = value

    def clone(self, *, recurse=True):
        """Copy the fields."""
        values = {name: one.clone() if recurse else one for name, one in self.items()}
        return type(self)(values, self._size)

    def unbind(self, dim):
        """Take the fields apart."""
        assert dim == 0
        rows = zip(*(value.unbind(0) for value in self._values.values()), strict=True)
        return tuple(type(self)(zip(self.keys(), row, strict=True), self._size[1:]) for row in rows)

    def plain(self):
        """Return the fields as lists."""
        return {name: value.tolist() for name, value in self.items()}


@dataclasses.dataclass(init=False)
class Classed(Fields):
    """The same with the looks of a dataclass, as a tensorclass has them."""

    a: object
    b: object

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values[name]


KINDS = [Fields, Classed]


def sample(kind, number):
    """Return one sample."""
    return kind({"a": torch.full((2,), float(number)), "b": torch.tensor(number)})


@pytest.mark.parametrize("kind", KINDS)
def test_collections_are_stacked(kind):
    """A batch of them is one of them with a batch size, alone and in a field."""
    samples = [sample(kind, number) for number in range(3)]
    expected = {"a": [[0, 0], [1, 1], [2, 2]], "b": [0, 1, 2]}
    (batch,) = nbpipe.source(samples).batch(3)
    assert (type(batch), batch.batch_size, batch.plain()) == (kind, (3,), expected)
    (batch,) = nbpipe.source([{"td": one, "n": 1} for one in samples]).batch(3)
    assert (batch["td"].plain(), batch["n"].tolist()) == (expected, [1, 1, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_collections_are_cast(kind):
    """With `dtype=` their floats are cast."""
    (batch,) = nbpipe.source([sample(kind, 1)] * 2).batch(2, dtype="float16")
    assert (batch["a"].dtype, batch["b"].dtype) == (torch.float16, torch.int64)
    assert batch.batch_size == (2,)


@pytest.mark.parametrize("kind", KINDS)
def test_collections_are_taken_apart(kind):
    """Unbatch gives their rows, also beside other parts."""
    whole = kind({"a": torch.arange(6).reshape(3, 2), "b": torch.arange(3)}, (3,))
    rows = list(nbpipe.source([whole]).unbatch())
    assert [row.plain() for row in rows] == [{"a": [2 * n, 2 * n + 1], "b": n} for n in range(3)]
    assert [row.batch_size for row in rows] == [()] * 3
    pairs = list(nbpipe.source([(whole, [7, 8, 9])]).unbatch())
    assert [(one.plain()["b"], number) for one, number in pairs] == [(0, 7), (1, 8), (2, 9)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cache_keeps_of_a_collection_is_its_own(kind):
    """A loop that changes a tensor does not change what comes in the next epoch."""
    with nbpipe.source([sample(kind, 1)]).map(lambda one: one.clone()).cache().start() as run:
        for _ in range(3):
            (one,) = run
            assert (type(one), one.plain()) == (kind, {"a": [1, 1], "b": 1})
            one["a"].zero_()


def refusal(chain):
    """Return the words with which a chain is refused."""
    with pytest.raises(StageError) as raised:
        list(chain)
    assert isinstance(raised.value.__cause__, ArgumentError), raised.value.__cause__
    return str(raised.value.__cause__)


def test_collections_that_do_not_fit_are_refused():
    """The field is named, and the way out."""
    ragged = [{"td": Fields({"a": torch.zeros(size)})} for size in (1, 2)]
    for options in ({}, {"pad": 0}):
        said = refusal(nbpipe.source(ragged).batch(2, **options))
        assert said.startswith("sample['td']: Fields samples must have the same keys and shapes")
        assert "to_dict()" in said
    assert "unbatch needs a batch with a first dimension" in refusal(
        nbpipe.source([sample(Fields, 1)]).unbatch()
    )


LAYOUTS = {
    "sparse_csr": lambda: torch.eye(2).to_sparse_csr(),
    "sparse_csc": lambda: torch.eye(2).to_sparse_csc(),
    "sparse_bsr": lambda: torch.eye(2).to_sparse_bsr((1, 1)),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_that_torch_does_not_stack_are_refused(layout):
    """The message names the field, the layout and how to convert it."""
    tensor = LAYOUTS[layout]()
    said = refusal(nbpipe.source([{"x": tensor}] * 2).batch(2, pad=0))
    assert said.startswith("sample['x']: tensors must")
    assert f"got {layout}" in said
    assert "collate=fn" in said


def test_sparse_tensors_with_coordinates_are_stacked():
    """Those of layout sparse_coo are stacked and cast; there is nothing to pad."""
    sparse = torch.eye(2, dtype=torch.float64).to_sparse()
    (batch,) = nbpipe.source([sparse] * 2).batch(2, dtype="float32")
    assert (batch.dtype, batch.to_dense().tolist()) == (torch.float32, [[[1, 0], [0, 1]]] * 2)
    assert "got 1e+300" in refusal(nbpipe.source([sparse * 1e300] * 2).batch(2, dtype="float32"))
    ragged = [sparse, torch.eye(3, dtype=torch.float64).to_sparse()]
    assert "must be dense to be padded" in refusal(nbpipe.source(ragged).batch(2, pad=0))


def test_sparse_arrays_of_scipy_are_refused():
    """So are those of scipy, which would become a list."""
    sparse = pytest.importorskip("scipy.sparse")
    for make in (sparse.csr_matrix, sparse.csr_array, sparse.coo_array):
        said = refusal(nbpipe.source([{"x": make([[1.0, 0.0]])}] * 2).batch(2))
        assert said.startswith(
            f"sample['x']: arrays must be dense to be stacked, got a {make.__name__}"
        )
        assert "scipy.sparse.vstack" in said
    (batch,) = nbpipe.source([sparse.csr_array([[1, 0]])] * 2).batch(2, collate=sparse.vstack)
    assert batch.toarray().tolist() == [[1, 0], [1, 0]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_nested_tensor_is_taken_apart():
    """Unbatch gives the tensors that a nested one holds."""
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    assert [one.tolist() for one in nbpipe.source([nested]).unbatch()] == [[1], [1, 1]]
