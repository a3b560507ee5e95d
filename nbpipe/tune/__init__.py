"""What limits a run, in plain words, and what to try."""

from .diagnosing import diagnose, judge
from .hang import Hang, hang_of
from .rules import HANGS, Diagnosis

__all__ = ["HANGS", "Diagnosis", "Hang", "diagnose", "hang_of", "judge"]
