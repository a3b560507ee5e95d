"""Names that users write: completion offers the contract, and a wrong word names the right one."""

import inspect
import types

import pytest

import nbpipe

PIPELINE = """balance batch cache claim dedupe enumerate export filter flat_map graph map peek
    repeat route sample shard shuffle skip stages start take to_device unbatch window"""
RUN = """autotune close closed controls diagnose epoch events export failures history iterate
    load_state_dict memory open_epoch pause paused pipeline plot resume retry_failed seed set_epoch
    stages state_dict stats status stop stopped summary trace train tuner wait"""
LOADER_RUN = """autotune close closed controls diagnose epoch events export failures history pause
    paused pipeline plot resume stages stats status stop stopped summary trace tuner"""


def double(number):
    """Return twice a number."""
    return 2 * number


def public(one):
    """Return the names that completion shows before anything is typed."""
    return {name for name in dir(one) if not name.startswith("_")}


@pytest.fixture
def pipe():
    """Return a short pipeline."""
    return nbpipe.source(range(10), name="numbers").map(double).batch(2)


@pytest.fixture
def run(pipe):
    """Return a run of it."""
    with pipe.start() as started:
        yield started


# -- what completion shows -------------------------------------------------------------------------
def test_module_shows_what_it_exports():
    """`nbpipe.` offers the names that the module exports, DataLoader among them, and no rooms."""
    assert public(nbpipe) == {name for name in nbpipe.__all__ if name != "__version__"}
    assert {"DataLoader", "source", "runs"} <= public(nbpipe)
    assert public(nbpipe.debug) == {"DeviceLeaks", "Leaks", "full_tracebacks", "leaks"}
    assert public(nbpipe.ranks) == {"LocalStore", "Store", "gather_states"}
    assert public(nbpipe.metrics) == {*nbpipe.metrics.__all__}


@pytest.mark.slow
def test_every_name_shown_is_there():
    """What the module offers can be had."""
    assert [name for name in dir(nbpipe) if not hasattr(nbpipe, name)] == []


def test_pipeline_and_run_show_their_contract(pipe, run):
    """A pipeline, a run, its iterator and its stages offer what is documented."""
    shown = {name: public(one) for name, one in {"pipe": pipe, "run": run}.items()}
    assert shown == {"pipe": set(PIPELINE.split()), "run": set(RUN.split())}
    assert public(nbpipe.Run) == set(RUN.split())  # `help(nbpipe.Run)` lists these
    assert public(iter(run)) == {"close"}
    knobs = {"concurrency", "prefetch"}
    assert public(pipe["double"]) == {"executor", "fn", "knob", "knobs", "name", "op", *knobs}
    assert public(pipe["batch"]) == public(pipe["double"]) - {"concurrency"}


def test_stage_with_workers_shows_them():
    """A stage of a run with workers offers these too."""
    pipe = nbpipe.source([1]).map(double, executor="process")
    with pipe.start() as run:
        more = public(run["double"]) - public(pipe["double"])
    assert more == {"workers", "pids", "link", "memory_bytes"}


@pytest.mark.slow
@pytest.mark.torch
def test_loader_and_its_run_show_their_contract():
    """A loader offers torch's names, and its run what a run has."""
    from torch.utils import data

    loader = nbpipe.DataLoader([1, 2])
    assert public(loader.run) == set(LOADER_RUN.split())
    ours = {"close", "export", "load_state_dict", "pipeline", "run", "state_dict", "workers"}
    assert public(loader) - ours <= public(data.DataLoader([1, 2]))


@pytest.mark.slow
def test_completion_of_ipython(pipe, run):
    """IPython's own completer, with jedi, offers the same."""
    completer = pytest.importorskip("IPython.core.completer")
    pytest.importorskip("jedi")
    names = {"nbpipe": nbpipe, "run": run, "pipe": pipe}
    one = completer.IPCompleter(shell=None, namespace=names, use_jedi=True)
    for name, value in names.items():
        with completer.provisionalcompleter():
            found = [match.text for match in one.completions(f"{name}.", len(name) + 1)]
        shown = {text.rpartition(".")[2] for text in found}
        assert {text for text in shown if not text.startswith("_")} == public(value)


# -- a word that is not there ----------------------------------------------------------------------
WRONG = {
    "map concurency": ("map", {"concurency": 4}, "did you mean 'concurrency'?"),
    "map num_workers": (
        "map",
        {"num_workers": 4},
        'write concurrency=4, executor="process" for worker processes',
    ),
    "map num_threads": ("map", {"num_threads": 4}, "write concurrency=4 ("),
    "filter prefetch_factor": ("filter", {"prefetch_factor": 2}, "write prefetch=2 ("),
    "flat_map deterministic": ("flat_map", {"deterministic": False}, "write ordered=False"),
    "batch collate_fn": ("batch", {"collate_fn": double}, "write collate=double"),
    "batch drop_remainder": ("batch", {"drop_remainder": True}, "write drop_last=True"),
    "shuffle sed": ("shuffle", {"sed": 1}, "did you mean 'seed'?"),
    "shard num_replicas": ("shard", {"num_replicas": 2}, "write world_size=2"),
    "window step": ("window", {"step": 2}, "write stride=2"),
    "take count": ("take", {"count": 2}, "write n=2"),
    "enumerate start": ("enumerate", {"start": 1}, "(arguments: none)"),
    "to_device prefetch": ("to_device", {"prefetch": 2}, "write depth=2"),
    "start isolated": ("start", {"isolated": True}, "did you mean 'isolate'?"),
    "export force": ("export", {"force": True}, "write overwrite=True"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_argument_of_an_operation(pipe, case):
    """An operation refuses an argument that it has not, with the word that is meant."""
    method, options, said = WRONG[case]
    with pytest.raises(nbpipe.ArgumentTypeError) as caught:
        getattr(pipe, method)(**options)
    (word,) = options
    assert str(caught.value).startswith(f"{method} has no argument {word!r}")
    assert said in str(caught.value)


def test_wrong_argument_elsewhere(run):
    """So do functions of the module, constructors, and methods of a run."""
    for call, said in (
        (lambda: nbpipe.source([1], num_workers=2), ".map(fn, concurrency=2)"),
        (lambda: nbpipe.mix([], weight=[1]), "did you mean 'weights'?"),
        (lambda: nbpipe.Retry(retries=3), "write times=3"),
        (lambda: nbpipe.progress(run, epoch=3), "did you mean 'epochs'?"),
        (lambda: run.train(print, epoch=2), "did you mean 'epochs'?"),
    ):
        with pytest.raises(nbpipe.ArgumentTypeError) as caught:
            call()
        assert said in str(caught.value)


def test_arguments_by_place(pipe):
    """Too many arguments without names, or too few, are told in the words of the call."""
    for call, said in (
        (
            lambda: pipe.batch(2, True),  # noqa: FBT003
            "batch takes size without a name, got 2 arguments; write the others by name: drop",
        ),
        (pipe.map, "map needs fn, got none"),
        (lambda: pipe.window(stride=2), "window needs size, got none"),
        (lambda: pipe.enumerate(1), "enumerate takes nothing without a name, got 1 arguments"),
        (nbpipe.Retry, "Retry needs times, got none"),
        (lambda: pipe.take(1, n=2), "take() got multiple values for argument 'n'"),
    ):
        with pytest.raises(nbpipe.ArgumentTypeError) as caught:
            call()
        assert said in str(caught.value)


def test_errors_inside_an_operation_are_their_own(pipe):
    """A TypeError that a function of the user raises in the call is not taken for one of ours."""
    with pytest.raises(TypeError, match="got an unexpected keyword") as caught:
        pipe.route(abs, {1: lambda chain: double(chain, by=3)})
    assert type(caught.value) is TypeError


def test_signatures_are_their_own():
    """`help()` and completion inside the brackets show the arguments of a method itself."""
    parameters = inspect.signature(nbpipe.Pipeline.map).parameters
    assert list(parameters)[:4] == ["self", "fn", "name", "executor"]
    plain = [vars(nbpipe.Pipeline)[name] for name in PIPELINE.split() if name != "stages"]
    assert all(isinstance(function, types.FunctionType) for function in plain)


# -- attributes that a run has not -----------------------------------------------------------------
def test_knobs_of_a_run_are_refused(run):
    """A knob set on the run is refused with the stage to set it on."""
    for name in ("concurrency", "num_workers"):
        with pytest.raises(nbpipe.UnknownKnobError) as caught:
            setattr(run, name, 3)
        assert "write run['double'].concurrency = 3" in str(caught.value)
    with pytest.raises(nbpipe.UnknownKnobError, match=r"write run\['numbers'\].prefetch"):
        run.prefetch  # noqa: B018
    assert run["double"].concurrency == 1


@pytest.mark.torch
def test_knobs_by_other_names(run):
    """A stage and a loader name the knob that another library calls so."""
    with pytest.raises(nbpipe.UnknownKnobError, match=r"'num_workers'; did you mean 'concurrency'"):
        run["double"].num_workers = 3
    loader = nbpipe.DataLoader([1, 2])
    for name, knob in (("concurrency", "num_workers"), ("prefetch", "prefetch_factor")):
        with pytest.raises(nbpipe.UnknownKnobError, match=f"'{name}'; write loader.{knob} = 3"):
            setattr(loader, name, 3)
    loader.label = "training"
    assert (loader.label, loader.num_workers) == ("training", 0)


def test_other_attributes_of_a_run_are_refused(run):
    """Nothing is set on a run by mistake; a misspelt name is told."""
    for name, said in (
        ("epoch", "run.epoch cannot be set; call run.set_epoch(number)"),
        ("stop", "run.stop cannot be set"),
        ("epocs", "a run has no attribute 'epocs'; did you mean 'epoch'?"),
    ):
        with pytest.raises(nbpipe.UnknownKnobError) as caught:
            setattr(run, name, 3)
        assert str(caught.value) == said
    with pytest.raises(AttributeError, match="did you mean 'stats'"):
        run.stat  # noqa: B018
