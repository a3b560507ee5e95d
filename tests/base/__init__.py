"""The room `base`."""
