"""Operations: what a stage is, and what each operation means. No threads, no locks."""
