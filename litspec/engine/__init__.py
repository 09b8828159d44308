"""Who runs next and what a round emits."""
