"""Kimi CLI, and Kimi Code which follows it: their files alone are read."""
