"""Measures: counters and times of a run, and the stats that they give."""
