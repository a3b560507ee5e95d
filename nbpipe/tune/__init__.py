"""Automatic tuning: measures a live run, and turns its knobs by measured gain."""
