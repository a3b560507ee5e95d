"""Pipelines as a whole: every chain against a plain list, frozen structure, names, tables."""

import functools

import numpy as np
import pytest
from hypothesis import given

import nbpipe
from nbpipe import ArgumentTypeError, UnknownStageError
from tests import models
from tests.chains import build
from tests.gates import epochs
from tests.strategies import HANDS, recipes

SCRIPT = "<img src=x onerror=alert(1)>"


def decode(item):
    """Do nothing."""
    return item


def pipe_of_three():
    """Give a short chain with a name given by hand."""
    return nbpipe.source(range(10), name="files").map(decode, concurrency=2).batch(4)


@given(recipes(), HANDS)
def test_any_chain_does_what_a_list_would(recipe, hands):
    """Whatever the steps, and whoever does them, the items are those of the model, in order."""
    assert list(build(recipe, hands)) == models.given(recipe)


@given(recipes())
def test_length_is_the_number_of_items(recipe):
    """`len()` is the number of items, or raises where a step may give any number."""
    sized = {word for word, *_ in recipe[1:]} <= models.SIZED
    try:
        length = len(build(recipe))
    except TypeError:
        length = None
    assert length == (len(models.given(recipe)) if sized else None)


@given(recipes(), HANDS)
def test_epochs_are_alike(recipe, hands):
    """Without randomness every epoch of a run gives the same items."""
    assert epochs(build(recipe, hands), 3) == 3 * [models.given(recipe)]


@given(recipes())
def test_building_twice_gives_the_same(recipe):
    """A cell that builds a pipeline may run twice: same stages, same items, nothing doubled."""
    one, two = build(recipe), build(recipe)
    assert (one.graph(), list(one)) == (two.graph(), list(two))


# -- frozen ----------------------------------------------------------------------------------------


def test_methods_leave_the_pipeline_as_it_was():
    """Every method gives a new pipeline."""
    pipe = nbpipe.source(range(4))
    before = pipe.graph()
    pipe.map(decode).filter(decode).batch(2).unbatch().take(1)
    assert (pipe.graph(), list(pipe)) == (before, [0, 1, 2, 3])


def test_two_pipelines_from_one_share_its_stages():
    """A knob turned in one pipeline is turned in those made from the same one."""
    base = pipe_of_three()
    one, other = base.take(1), base.unbatch()
    one["decode"].concurrency = 7
    assert one["decode"] is other["decode"]
    assert other.graph()[1]["knobs"]["concurrency"] == 7


def test_a_pipeline_takes_no_attributes():
    """The way to a knob is named."""
    pipe = pipe_of_three()
    with pytest.raises(ArgumentTypeError) as caught:
        pipe.concurrency = 8
    assert str(caught.value) == (
        "a pipeline is frozen: cannot set 'concurrency'; its methods return new pipelines, and "
        "knobs are set on its stages: pipe['decode'].concurrency = 8"
    )


def test_a_pipeline_is_always_true():
    """`if pipe:` asks whether there is one, not whether it has items."""
    assert bool(nbpipe.source([]))


def test_iteration_is_always_epoch_zero():
    """`for batch in pipe` starts anew every time; a run counts epochs."""
    pipe = nbpipe.source(range(50)).shuffle()
    first, second = epochs(pipe)
    assert list(pipe) == list(pipe) == first != second


# -- names and addresses ---------------------------------------------------------------------------


class ReadJPEGFile:
    """A callable with a name of several words."""

    def __call__(self, item):
        """Do nothing."""
        return item

    def method(self, item):
        """Do nothing."""
        return item


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (decode, "decode"),
        (functools.partial(functools.partial(decode)), "decode"),
        (ReadJPEGFile(), "read_jpeg_file"),
        (type("JPEGReader2", (ReadJPEGFile,), {})(), "jpeg_reader2"),
        (type("_X", (ReadJPEGFile,), {})(), "_x"),
        (ReadJPEGFile().method, "method"),
        (lambda item: item, "map_1"),
        (functools.partial(lambda item: item), "map_1"),
        (np.sqrt, "sqrt"),
        (str, "str"),
    ],
)
def test_a_stage_is_named_after_its_function(function, name):
    """Partials, methods, instances, lambdas and classes have names that one can type."""
    assert nbpipe.source([]).map(function).stages[-1].name == name


def test_automatic_names_get_numbers():
    """The same function twice is `decode` and `decode_2`; operations are numbered alike."""
    pipe = nbpipe.source([]).map(decode).map(decode).filter(decode).take(1).take(2)
    names = [stage.name for stage in pipe.stages]
    assert names == ["source", "decode", "decode_2", "decode_3", "take", "take_2"]


def test_a_function_called_consumer_gets_a_number():
    """The row of the training loop keeps its name."""

    def consumer(item):
        return item

    assert nbpipe.source([]).map(consumer).stages[-1].name == "consumer_2"


def test_names_that_clash_are_addressed_by_place():
    """Joined pipelines with equal names are told apart by their number, however deep."""
    pipe = nbpipe.source([1]).map(decode)
    other = nbpipe.source([1], name="others").map(decode)
    joined = nbpipe.zip(nbpipe.zip(pipe, other), other).map(decode, name="last")
    assert [row["name"] for row in joined.graph()] == [
        "source",
        "0/0/decode",
        "0/1/others",
        "0/1/decode",
        "0/zip",
        "1/others",
        "1/decode",
        "zip",
        "last",
    ]


def test_the_source_that_is_a_pipeline_has_an_address():
    """A pipeline as the source of another one is place 0 of it."""
    inner = nbpipe.source([1, 2])
    pipe = nbpipe.source(inner)
    assert (list(pipe), pipe["0/source"]) == ([1, 2], inner["source"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("decod", "no stage 'decod'; did you mean 'decode'?; this pipeline has 'files', 'decode',"),
        (1, "no stage 1"),
    ],
)
def test_an_unknown_stage_is_named_with_the_near_match(name, said):
    """A typing error is answered with the right name and with all names; it is a KeyError."""
    with pytest.raises(UnknownStageError) as caught:
        pipe_of_three()[name]
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "name", [SCRIPT, "naïve stage", "日本", "a" * 100, "' or 1=1", "{x}", "1", "@"]
)
def test_odd_names_work(name):
    """A name may hold what it likes, but for slashes and what cannot be printed."""
    pipe = nbpipe.source(range(3)).map(decode, name=name)
    pipe[name].concurrency = 2
    with pipe.start() as run:
        items = list(run)
        assert (items, run.stats()[name].items_out) == ([0, 1, 2], 3)


# -- looking at a pipeline -------------------------------------------------------------------------


def test_graph_is_plain_data():
    """The chain as data: names, operations, executors and knobs, and nothing live."""
    rows = pipe_of_three().map(decode, name="last", executor="inline").graph()
    assert rows == [
        {
            "name": "files",
            "op": "source",
            "detail": "range",
            "executor": "thread",
            "shares": None,
            "why": "",
            "knobs": {"prefetch": 16},
        },
        {
            "name": "decode",
            "op": "map",
            "detail": "",
            "executor": "thread",
            "shares": None,
            "why": "",
            "knobs": {"concurrency": 2, "prefetch": 8},
        },
        {
            "name": "batch",
            "op": "batch",
            "detail": "4",
            "executor": "thread",
            "shares": None,
            "why": "",
            "knobs": {"prefetch": 2},
        },
        {
            "name": "last",
            "op": "map",
            "detail": "",
            "executor": "inline",
            "shares": None,
            "why": "",
            "knobs": {},
        },
    ]


def test_repr_is_a_table():
    """A terminal shows every stage in a line, with its knobs."""
    assert repr(pipe_of_three()).splitlines() == [
        "Pipeline of 3 stages, 3 batches an epoch",
        "stage   operation  detail  executor  concurrency  prefetch",
        "──────  ─────────  ──────  ────────  ───────────  ────────",
        "files   source     range   thread                 16",
        "decode  map                thread    2            8",
        "batch   batch      4       thread                 2",
    ]


def test_repr_of_one():
    """One stage is a stage, and one batch a batch."""
    one = nbpipe.source(["a"])
    heads = [repr(pipe).splitlines()[0] for pipe in (one, one.batch(2))]
    assert heads == [
        "Pipeline of 1 stage, 1 item an epoch",
        "Pipeline of 2 stages, 1 batch an epoch",
    ]


def test_repr_of_unknown_length():
    """Where the number of items is not known, the table says nothing of it."""
    assert repr(pipe_of_three().unbatch()).startswith("Pipeline of 4 stages\n")


def test_html_holds_no_markup_from_outside():
    """Names, sources and values of routes are text, whatever they contain."""
    kind = type(SCRIPT, (list,), {})
    pipe = (
        nbpipe.source(kind([1]), name=SCRIPT)
        .map(decode, name="<b>")
        .route(decode, {SCRIPT: lambda chain: chain.map(decode)})
        .cache("<i>folder</i>")
    )
    html = pipe._repr_html_()
    assert not any(tag in html for tag in ("<img", "<b>", "<i>"))
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_tab_completion_offers_every_address():
    """Inside the brackets Jupyter shows the names that work."""
    pipe = nbpipe.concat(nbpipe.source([1]).map(decode), nbpipe.source([2]))
    offered = pipe._ipython_key_completions_()
    assert offered == ["0/source", "decode", "1/source", "concat"]
    assert [pipe[name] for name in offered] == list(pipe.stages)


# -- what may be an item ---------------------------------------------------------------------------


async def awaited(item):
    """Do nothing, on the event loop."""
    return item


ODD = [None, ValueError("a value"), StopIteration(), StopIteration, (), [], "", NotImplemented]
ODD += [object, ("wait",), "over", Ellipsis]


@pytest.mark.parametrize("function", [decode, awaited])
@pytest.mark.parametrize("executor", [None, "inline"])
def test_an_item_may_be_anything(function, executor):
    """None is no signal and an exception object no failure: both are ordinary items."""
    pipe = nbpipe.source(ODD).map(function).map(decode, executor=executor)
    assert list(pipe.flat_map(lambda one: [one]).filter(lambda one: True)) == ODD


def test_none_goes_through_every_operation():
    """None is counted, batched, windowed, cached and joined like other items."""
    nones = nbpipe.source([None, None]).cache()
    pipe = nbpipe.concat(nones, nones).shuffle(buffer_size=2).window(2, 2).unbatch().batch(3)
    assert list(nbpipe.zip(pipe, pipe)) == [([None] * 3, [None] * 3), ([None], [None])]


def test_items_are_handed_on_as_they_are():
    """No copy is made between stages of one process."""
    item = object()
    assert next(iter(nbpipe.source([item]).map(decode).filter(decode))) is item


def test_reading_the_length_runs_nothing():
    """`len()` and the table call no function of the user."""
    calls = []
    pipe = nbpipe.source(range(3)).map(calls.append)
    assert (len(pipe), repr(pipe) != "", calls) == (3, True, [])
