"""The command `nbpipe`: export from a notebook, and run what was exported.

Nothing but `__main__` imports it.
"""

from .main import main

__all__ = ["main"]
