"""The result of one check, as `ultramon doctor` and `ultramon backend check` print it."""

from __future__ import annotations

from typing import NamedTuple

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    """What was looked at."""
    status: str
    """``ok``, ``warning`` (it may be meant), or ``problem``: agents cannot rely on it."""
    message: str
    """What was found."""
    cure: str | None = None
    """What to do; None when there is nothing to do."""
