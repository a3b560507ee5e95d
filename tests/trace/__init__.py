"""Tests of `run.trace`."""
