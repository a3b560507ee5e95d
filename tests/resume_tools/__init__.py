"""Resume with what others save: torch, Lightning, Accelerate."""
