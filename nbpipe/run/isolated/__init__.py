"""A run whose stages live in a process of their own."""
