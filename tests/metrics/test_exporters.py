"""Runs in Prometheus and OpenTelemetry: scraped over HTTP, and read by a metric reader."""

import gc
import urllib.request

import pytest

import nbpipe

prometheus_client = pytest.importorskip("prometheus_client")


@pytest.fixture
def registry():
    """Give a registry that serves this test alone."""
    return prometheus_client.CollectorRegistry()


def served(registry):
    """Serve a registry, and scrape it once."""
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            return answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scraped(registry, scrape=prometheus_client.generate_latest):
    """Read a scrape as Prometheus does; give the kinds of metrics, and values by their labels."""
    from prometheus_client.parser import text_string_to_metric_families as parsed

    text = scrape(registry).decode()
    families = list(parsed(text))
    kinds = {family.name: family.type for family in families}
    found = {}
    for family in families:
        for one in family.samples:
            key = one.name, one.labels["run"], one.labels["stage"], one.labels["rank"]
            assert key not in found, "Prometheus refuses a scrape with the same series twice"
            found[key] = one.value
    return kinds, found


def pipeline():
    """Build a chain with an item that fails and one that is tried again."""
    return (
        nbpipe.source(range(6), name="files")
        .map(lambda n: 1 / (n - 2), name="decode", concurrency=3, on_error="skip")
        .batch(2)
    )


def test_scrape(registry):
    """A scrape over HTTP has the numbers of `run.stats()`, by run, stage and rank."""
    with pipeline().start() as run:
        nbpipe.metrics.prometheus(run, "train", registry=registry)
        list(run)
        kinds, found = scraped(registry, served)
        stats = run.stats()
    assert {key[2] for key in found} == {"files", "decode", "batch", "consumer"}
    assert {key[1::2] for key in found} == {("train", "0")}
    for stage, row in stats.items():
        assert found["nbpipe_items_total", "train", stage, "0"] == row.items_out
        assert found["nbpipe_busy_seconds_total", "train", stage, "0"] == pytest.approx(row.busy_s)
    assert found["nbpipe_failed_items_total", "train", "decode", "0"] == 1
    assert found["nbpipe_concurrency", "train", "decode", "0"] == 3
    assert ("nbpipe_concurrency", "train", "consumer", "0") not in found
    assert (kinds["nbpipe_items"], kinds["nbpipe_queued_items"]) == ("counter", "gauge")


def test_each_scrape_reads_anew(registry):
    """Knobs and counts are those of the moment of the scrape."""
    with pipeline().start() as run:
        nbpipe.metrics.prometheus(run, registry=registry)
        _, before = scraped(registry)
        list(run)
        run["decode"].concurrency = 5
        _, after = scraped(registry)
    names = [("nbpipe_items_total", "batch"), ("nbpipe_concurrency", "decode")]
    changes = [
        tuple(found[name, "run", stage, "0"] for name, stage in names) for found in (before, after)
    ]
    assert changes == [(0, 3), (3, 5)]


def test_two_runs_and_a_cell_that_runs_again(registry):
    """Runs share the metrics; a run of the same name is replaced; a closed run is gone."""
    with pipeline().start() as old, pipeline().start() as new, pipeline().start() as other:
        nbpipe.metrics.prometheus(old, "train", registry=registry)
        nbpipe.metrics.prometheus(other, "val", registry=registry, rank=3)
        nbpipe.metrics.prometheus(new, "train", registry=registry)
        list(new)
        _, found = scraped(registry)
        assert found["nbpipe_items_total", "train", "batch", "0"] == 3
        assert found["nbpipe_items_total", "val", "batch", "3"] == 0
    assert scraped(registry)[1] == {}


def test_a_registry_does_not_keep_a_run(registry):
    """A run that nothing else refers to is collected, and its series end."""
    run = pipeline().start()
    nbpipe.metrics.prometheus(run, registry=registry)
    del run
    gc.collect()
    assert scraped(registry)[1] == {}


def test_names_from_outside(registry):
    """Quotes, line ends and names that are no UTF-8 do no harm to a scrape."""
    stage, name = 'a"b\\c{x="y"}é', 'train"\n1 \udcff'
    with nbpipe.source(range(2), name=stage).start() as run:
        nbpipe.metrics.prometheus(run, name, registry=registry)
        _, found = scraped(registry)
    shown = 'train"\n1 \\udcff'
    assert {key[1:3] for key in found} == {(shown, stage), (shown, "consumer")}


def test_rank_of_the_job(registry, monkeypatch):
    """The rank is that of the job, as torchrun sets it."""
    monkeypatch.setenv("RANK", "7")
    with nbpipe.source(range(2)).start() as run:
        nbpipe.metrics.prometheus(run, registry=registry)
        _, found = scraped(registry)
    assert {key[3] for key in found} == {"7"}


def test_the_usual_registry():
    """Without a registry it is that of prometheus_client."""
    with nbpipe.source(range(2)).start() as run:
        nbpipe.metrics.prometheus(run, "usual")
        nbpipe.metrics.prometheus(run, "usual")
        labels = {"run": "usual", "stage": "source", "rank": "0"}
        read = prometheus_client.REGISTRY.get_sample_value
        list(run)
        assert read("nbpipe_items_total", labels) == 2
    assert read("nbpipe_items_total", labels) is None


@pytest.mark.torch
def test_loader(registry):
    """A `DataLoader` is shown, too."""
    loader = nbpipe.DataLoader(range(6), batch_size=2)
    nbpipe.metrics.prometheus(loader, registry=registry)
    list(loader)
    assert scraped(registry)[1]["nbpipe_items_total", "run", "consumer", "0"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "prometheus name must be a text of 1 to 200 characters, got ''"),
        ({"name": 3}, "of 1 to 200 characters, got 3"),
        ({"rank": -1}, "prometheus rank must be an int of at least 0, got -1"),
        ({"registry": 3}, "registry must be a CollectorRegistry, got a int, which has no register"),
        ({"run": [1]}, "prometheus must be given a run or a nbpipe.DataLoader, got a list"),
    ],
)
def test_wrong_arguments_are_refused(options, message, registry):
    """Each is named, and nothing is registered."""
    with nbpipe.source([1]).start() as run, pytest.raises(nbpipe.NbpipeError, match=message):
        nbpipe.metrics.prometheus(**{"run": run, "registry": registry} | options)
    assert list(registry.collect()) == []


# -- OpenTelemetry ---------------------------------------------------------------------------------
@pytest.fixture
def otel():
    """Give a meter, and a function that reads what it has collected."""
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider(metric_readers=[reader], shutdown_on_exit=False)

    def collected():
        data = reader.get_metrics_data()
        return {
            metric.name: (
                metric.unit,
                type(metric.data).__name__,
                {
                    tuple(point.attributes[name] for name in ("run", "stage", "rank")): point.value
                    for point in metric.data.data_points
                },
            )
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    yield provider.get_meter("nbpipe"), collected
    provider.shutdown()


def test_metric_reader(otel):
    """A reader collects the numbers of `run.stats()`, with units and attributes."""
    meter, collected = otel
    with pipeline().start() as run:
        nbpipe.metrics.opentelemetry(run, "train", meter=meter)
        list(run)
        found, stats = collected(), run.stats()
    unit, kind, points = found["nbpipe.items"]
    assert (unit, kind) == ("{item}", "Sum")
    assert points == {("train", stage, "0"): row.items_out for stage, row in stats.items()}
    assert found["nbpipe.busy"][0] == "s"
    assert found["nbpipe.queued_items"][1] == "Gauge"
    assert found["nbpipe.failed_items"][2]["train", "decode", "0"] == 1


def test_one_collection_reads_the_run_once(otel, monkeypatch):
    """All instruments of a collection show one moment; the next collection reads again."""
    meter, collected = otel
    with pipeline().start() as run:
        nbpipe.metrics.opentelemetry(run, meter=meter)
        reads, stats = [], nbpipe.Run.stats
        monkeypatch.setattr(nbpipe.Run, "stats", lambda self: reads.append(1) or stats(self))
        before = collected()["nbpipe.items"][2]["run", "batch", "0"]
        list(run)
        after = collected()["nbpipe.items"][2]["run", "batch", "0"]
    assert (len(reads), before, after) == (2, 0, 3)


def test_runs_of_a_meter(otel):
    """A second run needs no second instruments; a closed run is gone."""
    meter, collected = otel
    with pipeline().start() as one:
        nbpipe.metrics.opentelemetry(one, "train", meter=meter)
        with pipeline().start() as two:
            nbpipe.metrics.opentelemetry(two, "val", meter=meter)
            assert {key[0] for key in collected()["nbpipe.items"][2]} == {"train", "val"}
        assert {key[0] for key in collected()["nbpipe.items"][2]} == {"train"}
    assert collected().get("nbpipe.items", (0, 0, {}))[2] == {}


def test_names_are_those_of_prometheus(otel, registry):
    """With the unit, an OpenTelemetry exporter for Prometheus gives the same names."""
    meter, collected = otel
    suffixes = {"s": "_seconds", "By": "_bytes"}
    with pipeline().start() as run:
        nbpipe.metrics.opentelemetry(run, meter=meter)
        nbpipe.metrics.prometheus(run, registry=registry)
        theirs = {family.name for family in registry.collect()}
        ours = {
            name.replace(".", "_") + suffixes.get(unit, "")
            for name, (unit, *_) in collected().items()
        }
    assert ours == theirs


def test_wrong_meter():
    """An object that is not a meter is refused."""
    said = "opentelemetry meter must be a Meter, got a int"
    with nbpipe.source([1]).start() as run, pytest.raises(TypeError, match=said):
        nbpipe.metrics.opentelemetry(run, meter=3)
