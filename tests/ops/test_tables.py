"""A table is refused where its columns would be taken for items."""

from typing import NamedTuple

import pytest

import nbpipe
from nbpipe import ArgumentTypeError, StageError


class Polars(NamedTuple):
    """A table as polars has them: its iterator gives columns."""

    columns = ("a", "b")
    a: list
    b: list

    def iter_rows(self):
        """Iterate over the rows."""
        return zip(self.a, self.b, strict=True)


def tables():
    """Return one table of each library that is there, and the words for its rows."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {"a": [1, 2, 3], "b": [4, 5, 6]}
    table = arrow.table(columns)
    return {
        "DataFrame": (pandas.DataFrame(columns), "df.to_dict('records')"),
        "Polars": (Polars(**columns), "df.to_dicts()"),
        "Table": (table, "table.to_pylist()"),
        "RecordBatch": (table.to_batches()[0], "table.to_pylist()"),
    }


async def later(table):
    """Return a table, asynchronously."""
    return table


def maker(table):
    """Return an async function of no arguments that returns a table."""

    async def made():
        return table

    return made


PLACES = {
    "source": nbpipe.source,
    "a source's function": lambda table: nbpipe.source(lambda: table),
    "an async source's function": lambda table: nbpipe.source(maker(table)),
    "flat_map": lambda table: nbpipe.source([1]).flat_map(lambda _: table),
    "an async flat_map": lambda table: nbpipe.source([table]).flat_map(later),
    "an inline flat_map": lambda table: nbpipe.source([table]).flat_map(lambda one: one),
    "unbatch": lambda table: nbpipe.source([table]).unbatch(),
    "unbatch of a dict": lambda table: nbpipe.source([{"t": table, "n": [1, 2, 3]}]).unbatch(),
    "unbatch of a nested tuple": lambda table: nbpipe.source([([1], ([1], table))]).unbatch(),
    "mix": lambda table: nbpipe.mix([nbpipe.source(lambda: table), nbpipe.source([1])]),
    "interleave": lambda table: nbpipe.interleave([nbpipe.source(lambda: table)], cycle=1),
    "iterate": lambda table: nbpipe.source(range(9)).start().iterate(table),
}


@pytest.mark.parametrize("kind", ["DataFrame", "Polars", "Table", "RecordBatch"])
@pytest.mark.parametrize("place", PLACES)
def test_a_table_is_refused_wherever_it_would_be_iterated(place, kind):
    """The message names the table and says how to give its rows."""
    table, rows = tables()[kind]
    with pytest.raises((ArgumentTypeError, StageError)) as raised:
        list(PLACES[place](table))
    nbpipe.close_all()
    cause = raised.value.__cause__ or raised.value
    assert isinstance(cause, ArgumentTypeError)
    assert f"a collection of items, got a {kind}; for its rows give" in str(cause)
    assert rows in str(cause)


@pytest.mark.slow
def test_a_table_is_refused_in_a_worker_too():
    """So it is where the function runs in a worker process."""
    table, _ = tables()["DataFrame"]
    with pytest.raises(StageError, match="must give a collection of items, got a DataFrame"):
        list(nbpipe.source([1]).flat_map(lambda _: table, executor="process"))


@pytest.mark.parametrize("argument", ["dataset", "sampler", "batch_sampler"])
def test_a_loader_refuses_tables(argument):
    """A table is no dataset and no sampler: both are read by number, and it by column."""
    pytest.importorskip("torch")
    table, _ = tables()["Table"]
    with pytest.raises(ArgumentTypeError, match=f"{argument} must be a collection of items"):
        nbpipe.DataLoader(**{"dataset": [1, 2]} | {argument: table})


def test_columns_are_collections():
    """What holds one column is iterated as it is; a table that is an item is left alone."""
    frame = tables()["DataFrame"][0]
    assert list(nbpipe.source([frame["a"]]).unbatch()) == [1, 2, 3]
    assert list(nbpipe.source(lambda: frame["a"])) == [1, 2, 3]
    assert len(next(iter(nbpipe.source([frame, frame]).batch(2)))) == 2
    groups = list(nbpipe.source([1]).flat_map(lambda _: frame.groupby("a")))
    assert [number for number, _ in groups] == [1, 2, 3]
