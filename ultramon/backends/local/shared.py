"""What the parts of a backend that keeps a `Journal` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ultramon.backends.local.journal import Journal


class JournalPart:
    """Something in a journal that the threads of a process share.

    Args:
        journal: Where it is.
        guard: Gives the lock that keeps the threads of this process apart.
        prepare: Makes the place of the journal, before anything is written there.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], AbstractContextManager[object]],
        prepare: Callable[[], object],
    ) -> None:
        self._journal = journal
        self._guard = guard
        self._prepare = prepare
