"""Supervises the contexts of a run until every item is settled."""
