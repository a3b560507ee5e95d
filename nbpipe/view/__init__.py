"""How a run looks: one snapshot as plain data, and the pictures drawn of it."""
