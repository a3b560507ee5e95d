"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.base.gil import LockUse
from nbpipe.profiling.rates import Rate, RateWindow
from nbpipe.profiling.result import Profile
from nbpipe.profiling.stage_rate import StageRate

__all__ = ["LockUse", "Profile", "Rate", "RateWindow", "StageRate"]
