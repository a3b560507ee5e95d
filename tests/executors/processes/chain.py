"""The chain that most tests begin with."""

import nbpipe


def placed(items, fn, method="map", **options):
    """Make a chain of items, or of so many numbers, and one stage of processes named "fn"."""
    source = nbpipe.source(range(items) if isinstance(items, int) else items)
    options = {"concurrency": 2, **options}
    return getattr(source, method)(fn, name="fn", executor="process", **options)
