"""Feed: what a loader costs the training loop that it feeds."""
