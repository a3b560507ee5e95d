"""Profiling: how fast each stage is alone, and the training loop without waiting for data."""
