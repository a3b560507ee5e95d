"""Runs: epochs, orders from outside, loops in the background, a process of its own."""
