"""Compares what a program printed with what a page shows."""

import re


def matches(printed, shown):
    """Return whether output is what the page shows: blanks count once, … stands for anything."""
    words = " ".join(shown.split())
    pattern = ".*".join(map(re.escape, words.split("…")))
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None
