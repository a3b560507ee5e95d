"""The room `jupyter`, without a browser."""
