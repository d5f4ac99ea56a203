"""One context window: tokens, limits, levels; what decides is pure and touches no disk."""
