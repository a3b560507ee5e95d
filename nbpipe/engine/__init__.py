"""The machine: moves items between stages."""
