"""Stats of all stages in words: the table, and what a line of progress says of them."""

from nbpipe.engine.stats import RunStats, StageStats
from nbpipe.progress import _stages

STARTING = StageStats(workers=2, starting=2)
AT_WORK = StageStats(workers=4, memory_bytes=1_200_000_000, busy=0.5)


class Told:
    """Stands for a run that says these stats."""

    def __init__(self, **rows):
        self._rows = rows

    def stats(self):
        return RunStats(self._rows)


def test_workers_have_a_column():
    """Where there are workers, the table says how many, and what memory they take."""
    head, rows = RunStats({"files": StageStats(), "decode": AT_WORK, "embed": STARTING}).table()
    assert [head[-1], *(row[-1] for row in rows)] == [
        *("workers", "", "4 workers, 1.2 GB"),
        "starting 2 workers",
    ]


def test_no_column_without_workers():
    """Where all calls are done in threads, nothing is said of workers."""
    head, _ = RunStats({"files": StageStats()}).table()
    assert "workers" not in head


def test_progress_names_workers_that_start():
    """A line of progress says why nothing comes yet."""
    told = Told(files=StageStats(busy=0.1), decode=STARTING, embed=AT_WORK)
    said = _stages(told)
    assert said == "; slowest: embed (busy 50 %); decode is starting 2 workers"
