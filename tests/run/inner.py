"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.engine import step_time
from nbpipe.run import iterator

__all__ = ["iterator", "step_time"]
