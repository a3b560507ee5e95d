"""What torch is asked for, shown on stand-ins for its streams: no GPU is needed."""

import collections
import contextlib
import dataclasses

import pytest

from nbpipe import ArgumentError
from tests.executors.transfer.inner import leaves

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*(prototype|beta|invariant).*:UserWarning"),
]


class Cuda:
    """Stands for `torch.cuda` of a machine with two devices; notes what it is asked."""

    def __init__(self):
        self.asked = []

    def device_count(self):
        return 2

    def current_device(self):
        return 1

    def current_stream(self, device):
        return f"current of {device}"

    def default_stream(self, device):
        return f"default of {device}"

    def Stream(self, device):  # noqa: N802 - as torch has it
        return f"new on {device}"

    @contextlib.contextmanager
    def device(self, device):
        self.asked.append(device)
        yield
        self.asked.append(f"not {device}")

    stream = device

    class Event:
        """Notes the stream it is recorded on, and whether who waits for it sleeps."""

        def __init__(self, *, blocking=False):
            self.blocking = blocking

        def record(self, stream):
            self.stream = stream


class Torch:
    """torch, but for `torch.cuda`; pinned memory is ordinary memory here."""

    def __init__(self):
        self.cuda = Cuda()

    def __getattr__(self, name):
        import torch

        return getattr(torch, name)

    def empty_like(self, leaf, *, pin_memory, requires_grad, device=None):
        import torch

        made = torch.empty_like(leaf, requires_grad=requires_grad, device=device)
        made.was_pinned = pin_memory
        return made

    def empty(self, *size, pin_memory=False, **options):
        import torch

        self.cuda.asked += ["pinned"] if pin_memory else []
        return torch.empty(*size, **options)


class Part:
    """Notes the streams that were recorded for it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.streams = []

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    def record_stream(self, stream):
        self.streams.append(stream)


@pytest.fixture
def backend():
    """Give the backend over the stand-ins."""
    from nbpipe.executors.device.backend import Backend

    return Backend(Torch(), "cuda")


@pytest.mark.parametrize(("device", "name"), [("cuda", "cuda:1"), ("cuda:0", "cuda:0")])
def test_a_device_gets_its_full_name(backend, device, name):
    """Without a number it is this thread's device."""
    assert backend.resolve(device) == name


def test_a_device_beyond_those_there_are_is_refused(backend):
    """The message counts them."""
    with pytest.raises(ArgumentError, match=r"got 'cuda:2': this machine has 2 CUDA device\(s\)"):
        backend.resolve("cuda:2")


def test_who_waits_for_an_event_sleeps(backend):
    """By itself CUDA would keep a core busy for as long."""
    event = backend.record_event("mine")
    assert (event.stream, event.blocking) == ("mine", True)


@pytest.mark.slow
def test_tensors_on_the_device_are_known(torch, backend):
    """Others, and what is no tensor, are not."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        there, here = torch.empty(2, device="cuda:1"), torch.empty(2)
    assert [backend.device_of(one) for one in (there, here, "text", None)] == [
        "cuda:1",
        "",
        None,
        None,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.arange(24).reshape(2, 3, 4),
        lambda torch: torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
        lambda torch: torch.arange(3).expand(4, 3),
        lambda torch: torch.arange(6).reshape(2, 3).t(),
        lambda torch: torch.tensor(5),
        lambda torch: torch.empty(0, 3),
        lambda torch: torch.ones(3, requires_grad=True),
        lambda torch: torch.ones(2, 3, dtype=torch.bfloat16),
        lambda torch: torch.ones(3).to(torch.float8_e4m3fn),
        lambda torch: torch.ones(3, dtype=torch.complex128),
        lambda torch: torch.rand(1 << 20),
        lambda torch: torch.arange(6)[::2],
        lambda torch: torch.view_as_complex(torch.ones(3, 2)).conj(),
    ],
    ids=[
        *("plain", "channels last", "expanded", "transposed", "scalar", "empty", "grad"),
        *("bfloat16", "float8", "complex", "large", "gaps", "conj"),
    ],
)
def test_a_plain_tensor_is_pinned_as_it_is(torch, backend, make):
    """Values, shape and the order of the dimensions in memory are kept."""
    tensor = make(torch)
    staged = backend.pinned(tensor)
    dense = staged.stride() == tensor.stride() or 0 in tensor.stride() or tensor.stride() == (2,)
    assert (staged.was_pinned, staged.tolist() == tensor.tolist(), dense) == (True, True, True)


def test_pinning_takes_no_other_threads(torch, backend):
    """Torch, which would ask other threads for help, is not asked to copy."""
    from torch.overrides import TorchFunctionMode

    class Noted(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **kwargs or {})

    names, threads = [], torch.get_num_threads()
    with Noted():
        backend.pinned(torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1))
        backend.pinned(torch.arange(1 << 20)[::2])
    assert ("copy_" in names, "numpy" in names) == (False, True)
    assert torch.get_num_threads() == threads


def test_memory_for_a_batch_is_pinned_with_its_device_current(backend):
    """Else torch would set up the first device, too."""
    block = backend.pinned_block(100, "cuda:1")
    assert (block.nbytes, backend._torch.cuda.asked) == (100, ["cuda:1", "pinned", "not cuda:1"])


def test_memory_that_cannot_be_pinned_is_not_given(torch, backend, monkeypatch):
    """The batch is stacked in other memory then."""

    def refuse(*_, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Torch, "empty", refuse)
    assert backend.pinned_block(100, "cuda:1") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.ones(3).to_sparse(),
        lambda torch: torch.eye(3).to_sparse_csr(),
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda torch: torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged
        ),
        lambda torch: torch.nn.Parameter(torch.ones(3)),
        lambda torch: torch.empty(3, device="meta"),
    ],
    ids=["sparse", "csr", "nested", "jagged", "class of its own", "elsewhere"],
)
def test_other_tensors_are_not_pinned(torch, backend, make):
    """They are copied from where they are."""
    tensor = make(torch)
    assert backend.pinned(tensor) is tensor


class Moves:
    """A batch of one's own that moves itself, as those of several libraries do."""

    def to(self, device, *, non_blocking=False):
        return device, non_blocking


class Encoding(Moves, collections.UserDict):
    """A mapping with a method `to`."""


@dataclasses.dataclass
class Fields(Moves):
    """A dataclass with a method `to`."""

    tensor: object


class Pins(Moves):
    """Can pin itself; not where part of it is elsewhere."""

    def __init__(self, *, fails=False):
        self.fails = fails
        self.was_pinned = False

    def pin_memory(self):
        if self.fails:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor'")
        made = Pins()
        made.was_pinned = True
        return made


def test_a_batch_that_can_pin_itself_does(backend):
    """One that cannot at the moment is copied from where it is."""
    refuses = Pins(fails=True)
    assert backend.pinned(Pins()).was_pinned
    assert backend.pinned(refuses) is refuses


@pytest.mark.parametrize("make", [lambda tensor: Encoding(tensor=[tensor]), Fields], ids=str)
def test_the_parts_of_a_batch_that_moves_itself_are_pinned(torch, backend, make):
    """The batch stays as it was; what is moved has its class, and pinned tensors."""
    tensor = torch.ones(3)
    batch = make(tensor)
    made = backend.pinned(batch)
    (part,), (old,) = leaves(vars(made)), leaves(vars(batch))
    assert (type(made), part.was_pinned, old is tensor) == (type(batch), True, True)
    assert backend.copy(made, "cuda:1") == ("cuda:1", True)


def test_what_moves_itself_and_shows_no_parts_is_left_to_itself(backend):
    """It is copied from where it is."""
    batch = Moves()
    assert backend.pinned(batch) is batch


@pytest.fixture
def recorded(torch):
    """Give the memory that torch itself records streams for, here on the host."""
    found = []
    library = torch.library.Library("aten", "IMPL")
    library.impl("record_stream", lambda leaf, _: found.append(leaf.data_ptr()), "CPU")
    yield found
    library._destroy()


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.ones(3)[1:],
        lambda torch: torch.view_as_complex(torch.ones(3, 2)).conj(),
        lambda torch: torch.view_as_complex(torch.ones(3, 2)).conj().imag,
        lambda torch: torch._empty_affine_quantized([3], scale=0.1, dtype=torch.qint8),
    ],
    ids=["view", "conj", "negative", "quantized"],
)
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_stream_is_recorded_for_the_memory_itself(torch, backend, recorded, make):
    """Also where torch's own way would record it for a copy, or refuse."""
    tensor = make(torch)
    backend.record_stream(tensor, torch.Stream(device="cpu"))
    begins = tensor.untyped_storage().data_ptr()
    assert [pointer - begins < tensor.untyped_storage().nbytes() for pointer in recorded] == [True]
    assert recorded[0] >= begins


@pytest.mark.parametrize("device", ["cuda:01", "cuda:99999"])
def test_a_number_that_torch_does_not_take_is_refused(backend, device):
    """Also once the backend is there; the message has what torch says, or counts the devices."""
    with pytest.raises(ArgumentError, match=f"device must be .*, got '{device}': "):
        backend.resolve(device)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda torch: torch.ones(3).to_sparse(), ["_indices", "_values"]),
        (lambda torch: torch.eye(3).to_sparse_csr(), ["crow_indices", "col_indices", "values"]),
        (lambda torch: torch.eye(3).to_sparse_csc(), ["ccol_indices", "row_indices", "values"]),
        (lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), ["values"]),
        (
            lambda torch: torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], layout=torch.jagged
            ),
            ["values", "offsets"],
        ),
    ],
    ids=["sparse", "csr", "csc", "nested", "jagged"],
)
def test_a_stream_is_recorded_for_all_parts_of_a_tensor(torch, backend, make, parts):
    """A tensor that is not one block of memory is kept part by part."""

    class Whole:
        def __init__(self, tensor):
            self.layout, self.is_nested = tensor.layout, tensor.is_nested
            self.asked = {name: Part(getattr(tensor, name)()) for name in parts}

        def __getattr__(self, name):
            return lambda: self.asked[name]

    whole = Whole(make(torch))
    backend.record_stream(whole, "mine")
    assert [part.streams for part in whole.asked.values()] == [["mine"]] * len(parts)
