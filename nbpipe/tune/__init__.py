"""What limits a run, in plain words, and what to try."""

from .diagnosing import diagnose, judge
from .rules import Diagnosis

__all__ = ["Diagnosis", "diagnose", "judge"]
