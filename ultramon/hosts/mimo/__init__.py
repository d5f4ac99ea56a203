"""MiMo Code, a fork of opencode: its files alone are read."""
