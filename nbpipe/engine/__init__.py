"""The engine: moves items between stages."""
