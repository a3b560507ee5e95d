"""Export: a tuned pipeline becomes a module of plain Python."""
