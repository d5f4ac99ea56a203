"""Loads the models that a monitor's verbs return behind its start, not before it.

pydantic and its models take longer than all else of a first use, and an agent may need them for its
handoff only. Descriptors are held in reserve until they are loaded: a process that has used up all
others by then can still hand its work over.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
import threading

_log = logging.getLogger("ultramon.monitor")

LOAD_AFTER_SECONDS = 0.2
"""An agent that has just started loads its own things; one that ends before needs no model."""
MODULES = ("ultramon.handoff", "ultramon.context.explanation")
RESERVED_DESCRIPTORS = 4
"""An import reads one file at a time, and an extension module may need others."""


class _LateModels:
    def __init__(self) -> None:
        # Held over a fork too: a module that another thread was loading stays locked in the child.
        self.lock = threading.RLock()
        self._reserve: list[int] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def are_loaded(self) -> bool:
        # What another thread is still loading is waited for by the import that follows.
        return not self._reserve and all(name in sys.modules for name in MODULES)

    def load(self) -> None:
        with self.lock:
            try:
                _import()
            except (OSError, ImportError):
                # Probably no descriptor was left: the import tries again with those in reserve.
                self._release()
                _import()
            self._release()

    def load_soon(self) -> None:
        with self.lock:
            if self._thread is not None:
                return
            try:
                while len(self._reserve) < RESERVED_DESCRIPTORS:
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY))
                thread = threading.Thread(target=self._load_later, name="ultramon-models")
                thread.daemon = True
                thread.start()
                self._thread = thread
            except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
                _log.debug("the models load when they are needed: %s", error)

    def _load_later(self) -> None:
        if self._is_over.wait(LOAD_AFTER_SECONDS):
            return
        try:
            self.load()
        except (OSError, ImportError) as error:
            _log.debug("the models load when they are needed: %s", error)

    def _release(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def close(self) -> None:
        """End the thread: the end of the interpreter would abort it within an extension module."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()


_models = _LateModels()
atexit.register(_models.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_models.lock.acquire,
        after_in_parent=_models.lock.release,
        after_in_child=_models.lock.release,
    )


def load_models() -> None:
    """Load the models, unless they are; waits for the thread that does.

    Raises:
        OSError: The system refused.
        ImportError: The same, or a package is broken.
    """
    if not _models.are_loaded:
        _models.load()


def load_models_soon() -> None:
    """Have a thread load the models in a moment, once in a process."""
    if not _models.are_loaded:
        _models.load_soon()


def _import() -> None:
    for name in MODULES:
        importlib.import_module(name)
