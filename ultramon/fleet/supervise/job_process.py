"""The process of a job, with a copy of its last lines on stderr."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import weakref
from contextlib import suppress
from typing import Any

LOOK_SECONDS = 0.05
TAIL_LINES = 20
MAX_KEPT_BYTES = 1 << 20
"""A file of stderr is emptied when so much of it was passed on."""
_TAIL_BYTES = 16 * 1024
_MAX_LINE_CHARS = 500
_FLUSH_SECONDS = 1.0
_CHUNK_BYTES = 64 * 1024
_STDERR = 2


class JobProcess(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose stderr goes where that of this process does, and is remembered.

    The stderr of the process is a file without a name, which a thread passes on. A pipe would break
    with this process, and end a program that prints after that; this one may be killed at any time.
    Where stderr is given, or there is no place for the file, this is a plain `subprocess.Popen`.
    """

    def __init__(self, args: Any, **kwargs: Any) -> None:
        self._stderr_copy: _StderrCopy | None = None
        if kwargs.get("stderr") is None:
            with suppress(OSError, ImportError):
                self._stderr_copy = _StderrCopy()
        if self._stderr_copy is not None:
            kwargs["stderr"] = self._stderr_copy.descriptor
        super().__init__(args, **kwargs)
        if self._stderr_copy is not None:
            self._stderr_copy.start(self)

    def poll(self) -> int | None:
        """Return how the process ended, None while it runs."""
        code = super().poll()
        if code is not None and self._stderr_copy is not None:
            self._stderr_copy.finish()
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; see `subprocess.Popen.wait`."""
        code = super().wait(timeout)
        if self._stderr_copy is not None:
            self._stderr_copy.finish()
        return code

    def last_lines(self) -> list[str]:
        """Return the last lines of stderr, at most 20, each at most 500 characters long."""
        return [] if self._stderr_copy is None else self._stderr_copy.last_lines()


class _StderrCopy:
    """A file that is passed on to stderr while it grows."""

    def __init__(self) -> None:
        import fcntl

        self.descriptor, path = tempfile.mkstemp(prefix="ultramon-stderr-")
        # Without a name nothing is left behind, however the processes end.
        os.unlink(path)
        # Writers append, so that they continue at the end also after the file was emptied.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        self._lock = threading.Lock()
        self._passed_on = 0
        self._tail = b""
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ultramon-stderr", daemon=True)

    def __del__(self) -> None:
        os.close(self.descriptor)

    def start(self, owner: JobProcess) -> None:
        """Begin to pass on, for as long as the owner is there."""
        self._owner = weakref.ref(owner)
        self._thread.start()

    def finish(self) -> None:
        """Pass on what is left; a terminal that takes nothing is waited for a second at most."""
        if not self._has_ended.is_set():
            self._has_ended.set()
            self._thread.join(_FLUSH_SECONDS)

    def last_lines(self) -> list[str]:
        """Return the last lines, passed on or not."""
        with self._lock:
            size = os.fstat(self.descriptor).st_size
            start = max(self._passed_on, size - _TAIL_BYTES)
            tail = (self._tail + os.pread(self.descriptor, _TAIL_BYTES, start))[-_TAIL_BYTES:]
        lines = tail.decode("utf-8", "replace").splitlines()
        return [line[:_MAX_LINE_CHARS] for line in lines[-TAIL_LINES:]]

    def _run(self) -> None:
        while not self._has_ended.wait(LOOK_SECONDS) and self._owner() is not None:
            self._pass_on()
        self._pass_on()

    def _pass_on(self) -> None:
        while chunk := self._read():
            with suppress(OSError):  # its reader is gone
                while chunk:
                    chunk = chunk[os.write(_STDERR, chunk) :]

    def _read(self) -> bytes:
        """Return what is to be passed on next, and empty the file where it is large."""
        with self._lock:
            chunk = os.pread(self.descriptor, _CHUNK_BYTES, self._passed_on)
            self._passed_on += len(chunk)
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            if not chunk and self._passed_on > MAX_KEPT_BYTES:
                os.ftruncate(self.descriptor, 0)
                self._passed_on = 0
        return chunk
