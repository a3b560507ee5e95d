"""What does the work of stages, and the ways to it; nothing here knows an operation or a run."""
