"""Crush: its files alone are read."""
