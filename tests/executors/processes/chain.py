"""The chain that most tests begin with."""

import nbpipe


def placed(count, fn, **options):
    """Make a chain of numbers and one stage of processes named "fn"."""
    options = {"concurrency": 2, **options}
    return nbpipe.source(range(count)).map(fn, name="fn", executor="process", **options)
