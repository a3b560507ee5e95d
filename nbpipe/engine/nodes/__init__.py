"""Nodes: one for each stage of an epoch, and the steps, logs and budgets that they use."""
