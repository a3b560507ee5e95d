"""`nbpipe profile`: measure each stage of an exported module alone."""

from __future__ import annotations

import json
from argparse import Namespace

from ..profiling.profiler import profile as profile_of
from .run import failed, pipeline_in
from .terminal import DONE, INTERRUPTED, emit, printable_lines, settings


def profile(options: Namespace) -> int:
    """Do what the command line asks for."""
    pipe = pipeline_in(options.module, settings(options.set))
    try:
        found = profile_of(pipe, concurrency=options.concurrency, seconds=options.seconds)
    except Exception as error:
        raise failed(error) from error
    if options.json:
        emit(json.dumps(found.as_dict(), indent=2))
    else:
        emit(printable_lines(repr(found)))
    return DONE if found.complete else INTERRUPTED
