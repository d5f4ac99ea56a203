"""A look at the store every few seconds, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ultramon.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN_SECONDS = 5.0
_log = logging.getLogger("ultramon.backend")


class RegularLook:
    """Calls a function again and again; what the store refuses is logged once, and tried again.

    So is any other error of the function.

    Args:
        look: The function.
        name: Of the thread.
        every_seconds: Between two looks.
        trouble: What a refusal means, for the log: the error follows.

    Attributes:
        stopping: Set once it is to end.
    """

    def __init__(
        self, look: Callable[[], object], *, name: str, every_seconds: float, trouble: str
    ) -> None:
        self.stopping = threading.Event()
        self._look = look
        self._name = name
        self._every_seconds = every_seconds
        self._trouble = trouble
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin with a first look."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End the thread; return whether it has ended, which a look that hangs prevents."""
        self.stopping.set()
        if self._thread is None:
            return True
        self._thread.join(_JOIN_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        has_failed = False
        while True:
            try:
                self._look()
                has_failed = False
            except StateError as error:
                if not has_failed:
                    _log.warning("the store refused a look, %s: %s", self._trouble, error)
                has_failed = True
            # One odd value in a transcript or a record must not end the looks at all others.
            except Exception:  # noqa: BLE001 - the next look may succeed
                if not has_failed:
                    _log.exception("a look failed, %s", self._trouble)
                has_failed = True
            if self.stopping.wait(self._every_seconds):
                return
