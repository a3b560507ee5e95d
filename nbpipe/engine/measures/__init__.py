"""Measures: what is counted and timed of a run, and what is read from it."""
