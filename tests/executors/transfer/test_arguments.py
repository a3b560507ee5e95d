"""`to_device` and `map(device=)`: what they take, what they refuse, what they show."""

import json

import pytest

import nbpipe
from nbpipe import ArgumentError, KnobError, UnknownKnobError

PIPE = nbpipe.source(range(10), name="files")


def double(item):
    """Give an item twice as large."""
    return 2 * item


async def fetch(item):
    """Await nothing."""
    return item


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "cpu", "mps", "xpu:0", "meta"])
def test_any_device_may_be_named_where_it_is_not(device):
    """A pipeline is built anywhere; whether there is such a device shows when it starts."""
    stage = PIPE.to_device(device)["to_device"]
    found = stage.op, stage.executor, stage.spec.detail(), stage.fn
    assert found == ("to_device", "device", device, None)


@pytest.mark.parametrize("device", ["", "CUDA", "cuda:", "cuda:x", "gpu 0", 0, None, b"cpu"])
def test_what_is_no_device_is_refused(device):
    """The message gives examples and the value."""
    with pytest.raises(ArgumentError) as caught:
        PIPE.to_device(device)
    assert str(caught.value) == (
        f"to_device device must be a torch device such as 'cuda', 'cuda:1' or 'cpu', got {device!r}"
    )


def test_a_device_of_torch_is_taken(torch):
    """As well as its name."""
    assert PIPE.to_device(torch.device("cuda", 1))["to_device"].spec.device == "cuda:1"


@pytest.mark.parametrize("depth", [0, 17, 1.5, True, "2"])
def test_a_depth_out_of_range_is_refused(depth):
    """At the call, and as a knob, where it changes nothing."""
    with pytest.raises(KnobError) as caught:
        PIPE.to_device("cpu", depth=depth)
    stage = PIPE.to_device("cpu")["to_device"]
    with pytest.raises(KnobError):
        stage.depth = depth
    assert (str(caught.value), stage.depth) == (
        f"to_device.depth must be an int in [1, 16] batches, got {depth!r}",
        2,
    )


@pytest.mark.parametrize("knob", ["concurrency", "prefetch"])
def test_a_device_stage_has_one_knob(knob):
    """The message names the one there is."""
    stage = PIPE.to_device("cpu", depth=4)["to_device"]
    with pytest.raises(UnknownKnobError) as caught:
        setattr(stage, knob, 3)
    assert str(caught.value) == (
        f"stage 'to_device' has no {knob}: calls on a device run one after the other; set depth, "
        "the batches held ready there"
    )
    assert {name: one.value for name, one in stage.knobs.items()} == {"depth": 4}


@pytest.mark.parametrize(
    "option",
    [
        {"executor": "thread"},
        {"executor": "process"},
        {"concurrency": 2},
        {"prefetch": 4},
        {"timeout_s": 1.0},
        {"worker_init": double},
        {"max_items_per_worker": 3},
        {"ordered": False},
    ],
)
def test_options_of_other_places_are_refused(option):
    """The message names the option."""
    ((word, value),) = option.items()
    with pytest.raises(ArgumentError) as caught:
        PIPE.map(double, device="cpu", **option)
    assert str(caught.value).startswith(f"double {word} does not go with device, got {value!r}: ")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: PIPE.map(fetch, device="cpu"), "fetch must be a plain function on a device"),
        (lambda: PIPE.map(double, depth=3), "double depth goes with device, got 3; give prefetch"),
        (lambda: PIPE.to_device("cuda", stream=7), "to_device stream must be a stream of its"),
    ],
    ids=["coroutine function", "depth without a device", "no stream"],
)
def test_what_a_device_does_not_take(made, message):
    """The message names what is wanted instead."""
    with pytest.raises(ArgumentError, match=message):
        made()


def test_neighbours_on_a_device_share_their_depth():
    """Set on any, it is set on all; a stage on another device has its own."""
    pipe = (
        PIPE.to_device("cuda", depth=3)
        .map(double, device="cuda")
        .map(abs, device="cuda:1")
        .to_device("cpu")
    )
    pipe["double"].depth = 5
    assert [stage.depth for stage in pipe.stages[1:]] == [5, 5, 2, 2]


def test_neighbours_cannot_be_given_different_depths():
    """The message names whose it is."""
    pipe = PIPE.to_device("cuda", depth=3)
    with pytest.raises(ArgumentError) as caught:
        pipe.map(double, device="cuda", depth=4)
    assert str(caught.value) == (
        "double runs with to_device on one device, so its depth must be that of to_device, 3 "
        "[batches], got 4; leave it out"
    )


@pytest.mark.parametrize(
    ("append", "name"),
    [
        (lambda pipe: pipe.map(double), "double"),
        (lambda pipe: pipe.filter(bool, executor="process"), "bool"),
        (lambda pipe: pipe.batch(2), "batch"),
        (lambda pipe: pipe.cache(), "cache"),
        (lambda pipe: pipe.take(1), "take"),
        (lambda pipe: pipe.repeat(2), "repeat"),
        (lambda pipe: pipe.route(str, {"a": lambda chain: chain.map(abs)}), "route"),
    ],
)
def test_a_stage_behind_a_device_is_refused(append, name):
    """Device stages end a pipeline; the message names both, and says where the stage belongs."""
    pipe = PIPE.to_device("cpu").map(double, device="cpu", name="first")
    with pytest.raises(ArgumentError) as caught:
        append(pipe)
    assert str(caught.value).startswith(
        f"{name} must stand before the stages on a device, got it after 'to_device': what follows "
        "to_device is a map with device=, or the training loop; move "
    )


@pytest.mark.parametrize(
    "join",
    [
        lambda pipe: nbpipe.zip(pipe, PIPE),
        lambda pipe: nbpipe.concat(PIPE, pipe),
        lambda pipe: nbpipe.mix([pipe, PIPE]),
        lambda pipe: nbpipe.interleave([pipe]),
        nbpipe.source,
        lambda pipe: PIPE.route(str, {"a": lambda chain: chain.map(abs, device="cpu", name="on")}),
    ],
)
def test_pipelines_that_end_on_a_device_are_not_joined(join):
    """The message names the stage on the device, and where it belongs."""
    with pytest.raises(ArgumentError, match=r"got 'on(@a)?', which runs on a device.* after"):
        join(PIPE.map(double, device="cpu", name="on"))


def test_a_device_stage_gives_as_many_batches_as_it_gets():
    """`len` goes through it."""
    pipe = PIPE.batch(4).to_device("cuda").map(double, device="cuda")
    assert len(pipe) == 3


def test_the_graph_names_device_and_depth():
    """As data, and in the table, which has a column for depth where there is one."""
    pipe = PIPE.to_device("cuda", depth=3).map(double, device="cuda")
    rows = pipe.graph()[1:]
    assert json.loads(json.dumps(rows)) == [
        {
            "name": "to_device",
            "op": "to_device",
            "detail": "cuda",
            "executor": "device",
            "shares": None,
            "why": "",
            "knobs": {"depth": 3},
        },
        {
            "name": "double",
            "op": "map",
            "detail": "on cuda",
            "executor": "device",
            "shares": "to_device",
            "why": "",
            "knobs": {"depth": 3},
        },
    ]
    assert ("depth" in str(pipe), "depth" in str(PIPE)) == (True, False)


@pytest.mark.torch
def test_a_device_that_is_not_there_is_refused_at_the_start():
    """Nothing is left running."""
    with pytest.raises(ArgumentError) as caught:
        PIPE.to_device("hpu").start()
    assert str(caught.value).startswith(
        "to_device device must be one of this machine, got 'hpu': torch finds no HPU device here"
    )


@pytest.mark.torch
def test_what_torch_knows_no_device_of_that_name_is_refused():
    """With what torch says of it."""
    with pytest.raises(ArgumentError, match="to_device device must be a torch device, got 'gpu'"):
        PIPE.to_device("gpu").start()


@pytest.mark.torch
def test_a_stream_where_there_are_none_is_refused():
    """The host has no streams."""

    class Stream:
        def wait_event(self, event):
            """Wait for nothing."""

    with pytest.raises(ArgumentError, match="to_device stream must be left out for device 'cpu'"):
        PIPE.to_device("cpu", stream=Stream()).start()
