"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.jupyter import controls as controls_module
from nbpipe.jupyter import panel as panel_module
from nbpipe.jupyter import panel_of
from nbpipe.jupyter import runs as runs_module
from nbpipe.jupyter.display import WIDGET_VIEW, RunDisplay
from nbpipe.jupyter.publisher import Publisher, RunChannel
from nbpipe.jupyter.runs import KernelRuns
from nbpipe.show.watch import record_export, run_started

__all__ = [
    "WIDGET_VIEW",
    "KernelRuns",
    "Publisher",
    "RunChannel",
    "RunDisplay",
    "controls_module",
    "panel_module",
    "panel_of",
    "record_export",
    "run_started",
    "runs_module",
]
