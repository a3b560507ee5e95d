"""The rules that find what limits a run, each with its finding, its evidence and its advice."""
