"""The merge queue of a relay: a branch that only names trees that were checked as a whole."""
