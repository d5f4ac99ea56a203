"""Waiting for what another process does and announces to nobody."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack

LOOK_SECONDS = 0.01
"""Between two looks, so that a waiting test takes no processor from what it waits for."""


def until(condition, process=None):
    """Wait until a condition holds.

    Args:
        condition: Called again and again.
        process: Its end before that fails the test; None = nobody's does.
    """
    with ExitStack() as stack:
        ends = []
        if process is not None and process.poll() is None:
            ends.append(os.pidfd_open(process.pid))
            stack.callback(os.close, ends[0])
        while not condition():
            assert process is None or process.poll() is None
            select.select(ends, [], [], LOOK_SECONDS)
