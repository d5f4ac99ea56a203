"""Orchestrators that come with the bench: programs of their own, run by their paths."""
