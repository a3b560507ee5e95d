"""All numbers of all stages, when a scraper or a metric reader asks for them."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, final

from ..base.checks import integer
from ..base.format import plain
from ..base.names import names_arguments
from ..engine.measures.stats import StageStats
from ..errors import ArgumentError, MissingExtraError
from ..ops.plan import default_rank
from ..ops.stage import CONSUMER
from .log import method_of, run_of

_LONGEST_NAME = 200


class _Metric(NamedTuple):
    """A number of a stage.

    Attributes:
        kind: "counter", which only grows, or "gauge".
        name: its name; Prometheus adds the unit, and "_total" to a counter.
        field: of `StageStats`.
        unit: as OpenTelemetry writes it.
        text: what it is.
    """

    kind: str
    name: str
    field: str
    unit: str
    text: str


_METRICS = (
    _Metric("counter", "items", "items_out", "{item}", "Items that the stage passed on"),
    _Metric("counter", "failed_items", "errors", "{item}", "Items that failed for good"),
    _Metric("counter", "retries", "retries", "{call}", "Calls that were tried again"),
    _Metric("counter", "output", "bytes_out", "By", "Bytes that the stage passed on"),
    _Metric("counter", "busy", "busy_s", "s", "Slot-time inside the function; steps of the loop"),
    _Metric("counter", "starved", "starved_s", "s", "Slot-time without input; waits of the loop"),
    _Metric("counter", "blocked", "blocked_s", "s", "Slot-time without room for a result"),
    _Metric("counter", "slot", "slot_s", "s", "Slot-time as a whole"),
    _Metric("gauge", "running_calls", "running", "{call}", "Calls in progress"),
    _Metric("gauge", "concurrency", "concurrency", "{call}", "Most calls at once"),
    _Metric("gauge", "queued_items", "queued", "{item}", "Results that wait for the next stage"),
    _Metric("gauge", "prefetch", "prefetch", "{item}", "Most results that may wait"),
    _Metric("gauge", "call_p50", "latency_p50_s", "s", "Median time of a call, last seconds"),
    _Metric("gauge", "call_p95", "latency_p95_s", "s", "95th percentile of that time"),
    _Metric("gauge", "workers", "workers", "{worker}", "Worker processes, or Dask workers"),
    _Metric("gauge", "worker_memory", "memory_bytes", "By", "Resident memory of the processes"),
)
_OF_LOOP = {"items", "busy", "starved", "slot"}  # those that the training loop has too
_SUFFIXES = {"s": "_seconds", "By": "_bytes"}  # of names in Prometheus


class _Sample(NamedTuple):
    """The numbers of one stage of one run, with the labels of the stage."""

    labels: Mapping[str, str]
    stats: StageStats

    def has(self, metric: _Metric) -> bool:
        """Return whether the metric means something here."""
        return metric.name in _OF_LOOP or self.labels["stage"] != CONSUMER


@final
class _Shown:
    """The runs that one registry or meter shows, by name; it keeps none of them."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[weakref.ref[Any], int | None]] = {}

    def add(self, name: str, run: Any, rank: int | None) -> None:
        """Show a run; one of the same name is shown no more."""
        kept = {known: one for known, one in self._runs.items() if one[0]() is not None}
        self._runs = {**kept, name: (weakref.ref(run), rank)}

    def samples(self) -> list[_Sample]:
        """Read the stats of each open run once."""
        found = []
        for name, (reference, rank) in self._runs.items():
            run = reference()
            if run is not None and not run.closed:
                common = {"run": name, "rank": str(_rank() if rank is None else rank)}
                for stage, stats in run.stats().items():
                    found.append(_Sample({**common, "stage": plain(stage)}, stats))
        return found


def _rank() -> int:
    """Return this process's rank in its job, as torch or `torchrun` has it; else 0."""
    known, variable = default_rank(), os.environ.get("RANK", "")
    if known is not None:
        return known[0]
    return int(variable) if variable.isdecimal() else 0


@names_arguments
def prometheus(
    run: Any, name: str = "run", *, registry: Any = None, rank: int | None = None
) -> None:
    """Show the stats of a run to Prometheus, until it closes.

    They are read when Prometheus scrapes, so there is no cost in between. The labels are `run`,
    `stage` and `rank`; the stage "consumer" is your training loop. Serve them with
    `prometheus_client.start_http_server(port)`.

    Args:
        run: a run or a `DataLoader`. It is held weakly.
        name: the label `run`. A run that is shown under the same name is replaced, so you can run
            the cell again.
        registry: a `CollectorRegistry`; by default `prometheus_client.REGISTRY`.
        rank: the label `rank`; by default that of `torch.distributed`, else the variable RANK,
            else 0.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        ArgumentError: `name` is no short text, or `rank` no int of at least 0.
        ArgumentTypeError: neither a run nor a `DataLoader`.

    Examples:
        >>> import nbpipe
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> with nbpipe.source(range(4), name="files").start() as run:
        ...     nbpipe.metrics.prometheus(run, "train", registry=registry)
        ...     items = list(run)
        ...     print(generate_latest(registry).decode().splitlines()[2])
        nbpipe_items_total{rank="0",run="train",stage="files"} 4.0
    """
    given = _checked("prometheus", run, name, rank)
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingExtraError.of("prometheus_client", "metrics", "metrics.prometheus") from error
    registry = REGISTRY if registry is None else registry
    method_of("prometheus registry", registry, "register", "a CollectorRegistry")
    shown = _shown_by(_registries, registry, lambda one: registry.register(_Collector(one)))
    shown.add(*given)


@names_arguments
def opentelemetry(
    run: Any, name: str = "run", *, meter: Any = None, rank: int | None = None
) -> None:
    """Show the stats of a run to OpenTelemetry, until it closes.

    They are observable instruments, read when a metric reader collects. The attributes are `run`,
    `stage` and `rank`; the stage "consumer" is your training loop.

    Args:
        run: a run or a `DataLoader`. It is held weakly.
        name: the attribute `run`. A run that is shown under the same name is replaced.
        meter: a `Meter`; by default the one named "nbpipe" of the global provider.
        rank: the attribute `rank`; by default as in `prometheus`.

    Raises:
        MissingExtraError: opentelemetry-api is not installed.
        ArgumentError: `name` is no short text, or `rank` no int of at least 0.
        ArgumentTypeError: neither a run nor a `DataLoader`.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).start() as run:
        ...     nbpipe.metrics.opentelemetry(run, "train")
    """
    given = _checked("opentelemetry", run, name, rank)
    meter = _own_meter() if meter is None else meter
    method_of("opentelemetry meter", meter, "create_observable_counter", "a Meter")
    shown = _shown_by(_meters, meter, lambda one: _Instruments(one).create(meter))
    shown.add(*given)


_registries: MutableMapping[Any, _Shown] = weakref.WeakKeyDictionary()
_meters: MutableMapping[Any, _Shown] = weakref.WeakKeyDictionary()
_adding = threading.Lock()


@functools.cache  # the API gives another object at each call
def _own_meter() -> Any:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        name = "opentelemetry-api"
        raise MissingExtraError.of(name, "metrics", "metrics.opentelemetry") from error
    return get_meter("nbpipe")


def _shown_by(
    known: MutableMapping[Any, _Shown], place: Any, attach: Callable[[_Shown], object]
) -> _Shown:
    """Return the runs that a registry or a meter shows; the first time, attach them to it."""
    with _adding:
        shown = known.get(place)
        if shown is None:
            shown = _Shown()
            attach(shown)
            known[place] = shown
        return shown


def _checked(what: str, run: Any, name: Any, rank: Any) -> tuple[str, Any, int | None]:
    found = run_of(what, run)
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise ArgumentError(
            f"{what} name must be a text of 1 to {_LONGEST_NAME} characters, got {name!r}"
        )
    return plain(name), found, rank if rank is None else integer(f"{what} rank", rank, minimum=0)


@final
class _Collector:
    """A custom collector of prometheus_client."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Any]:
        """Yield each metric with the numbers of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        samples = self._shown.samples()
        for metric in _METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            name = f"nbpipe_{metric.name}{_SUFFIXES.get(metric.unit, '')}"
            family = kind(name, metric.text, labels=("run", "stage", "rank"))
            for one in samples:
                if one.has(metric):
                    labels = [one.labels[label] for label in ("run", "stage", "rank")]
                    family.add_metric(labels, getattr(one.stats, metric.field))
            yield family


@final
class _Instruments:
    """The observable instruments of a meter; those of one collection share one reading."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._samples: list[_Sample] = []
        self._seen = {metric.name for metric in _METRICS}

    def create(self, meter: Any) -> None:
        """Create them."""
        for metric in _METRICS:
            create = getattr(meter, f"create_observable_{metric.kind}")
            create(
                f"nbpipe.{metric.name}",
                callbacks=[lambda _, metric=metric: self._observed(metric)],
                unit=metric.unit,
                description=metric.text,
            )

    def _observed(self, metric: _Metric) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        for one in self._read(metric.name):
            if one.has(metric):
                yield Observation(getattr(one.stats, metric.field), one.labels)

    def _read(self, name: str) -> list[_Sample]:
        """Return a reading that this instrument has not had yet."""
        with self._lock:
            if name in self._seen:
                self._samples, self._seen = self._shown.samples(), set()
            self._seen.add(name)
            return self._samples
