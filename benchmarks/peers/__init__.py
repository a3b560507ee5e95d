"""One module for each contender; each builds its pipelines through its own idiomatic API.

A module offers `open_pipeline(job)`, a context manager that gives an iterator: entering it
starts, leaving it stops. Nothing is imported here; a child process imports the one module of the
contender that it measures.
"""
