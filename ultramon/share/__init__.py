"""Mirrors this machine's agents to a database that many machines share: numbers, no text."""
