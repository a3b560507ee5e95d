"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.jupyter import kernel as pump
from nbpipe.jupyter.kernel import LIMIT, Pump
from nbpipe.jupyter.magics import HELP

__all__ = [
    "HELP",
    "LIMIT",
    "Pump",
    "pump",
]
