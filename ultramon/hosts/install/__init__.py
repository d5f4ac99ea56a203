"""Hooks go into a host's settings and out again: planned, shown, done."""
