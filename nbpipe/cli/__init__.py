"""The command `nbpipe`: export from a notebook, and run what was exported."""

from .main import main

__all__ = ["main"]
