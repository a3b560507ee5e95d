"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.engine.measures import step_time
from nbpipe.run import iterator, pace

__all__ = ["iterator", "pace", "step_time"]
