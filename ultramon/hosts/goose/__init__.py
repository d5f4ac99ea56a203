"""Goose: its files alone are read."""
