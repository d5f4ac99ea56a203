"""The version of ultramon."""

__version__ = "0.1.0"
