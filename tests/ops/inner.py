"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.ops import index as index_steps
from nbpipe.ops.chain import absorbed, index_plan
from nbpipe.ops.index import Lengths, PlanEpoch
from nbpipe.ops.plan import IndexPlan
from nbpipe.ops.ranges import IndexRanges

__all__ = [
    "IndexPlan",
    "IndexRanges",
    "Lengths",
    "PlanEpoch",
    "absorbed",
    "index_plan",
    "index_steps",
]
