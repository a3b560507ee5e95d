"""A started pipeline: its epochs, its loop, and the process it may live in."""
