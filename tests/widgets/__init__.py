"""Widgets without a browser."""
