"""Hands: what does the work of the stages; all satisfy the contract in `base`."""
