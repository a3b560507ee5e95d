"""Operations, bare: without an engine."""
