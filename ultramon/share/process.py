"""The process that shares: one for each state directory, the one that holds its lock.

It only reads the files of agents. Whatever it waits for, no hook and no agent waits for it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateError, UltramonError
from ultramon.hosts.resident.forwarder import PACKAGE
from ultramon.hosts.resident.loaded_code import LoadedCode
from ultramon.hosts.resident.sharing import CHOICES_FILE, LOCK_FILE
from ultramon.share.choices import load_choices
from ultramon.share.identity import load_identity, new_identity, store_identity
from ultramon.share.kept import Kept
from ultramon.share.looks import Looks
from ultramon.share.sending import Sending
from ultramon.share.status import Status
from ultramon.system.files import make_private_directory, open_private
from ultramon.system.locks import Lock, LockedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.share.choices import Choices

LOOK_SECONDS = 1.0
"""How often it looks at the files. Two looks cost some milliseconds where nothing has changed."""
LOCK_SECONDS = 2.0
"""How long it waits for the end of another one."""
CODE_SECONDS = 30.0
"""How often it looks whether its code was replaced on disk; then it begins anew with that."""

_log = logging.getLogger("ultramon.share")


class ShareProcess:
    """Shares from a state directory until a signal ends it, or the choices say so.

    Args:
        directory: The state directory, absolute.
        look_seconds: How often it looks.
        clock: Epoch seconds.
    """

    def __init__(
        self,
        directory: str,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._look_seconds = look_seconds
        self._clock = clock
        self._local = LocalBackend(directory)
        self._kept = Kept(directory)
        self._wake, self._woken = socket.socketpair()
        self._is_ending = False
        self._said = ""

    def run(self) -> int:
        """Share; return an exit code: 0 after a signal or a stop, or where another one shares."""
        # A signal that comes at any moment must end the pause that follows.
        self._wake.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        make_private_directory(self._directory)
        path = os.path.join(self._directory, LOCK_FILE)
        try:
            with Lock(path, open_private, LOCK_SECONDS):
                return self._share()
        except LockedError:
            _log.info("another process shares from %s", self._directory)
            return 0
        finally:
            self._kept.close()
            self._local.close()

    def _end(self, *_signal: object) -> None:
        self._is_ending = True

    def _share(self) -> int:
        """Share by the choices as they are, and anew when they are others."""
        while not self._is_ending:
            mark = self._choices_mark()
            choices = load_choices(self._directory)
            if choices is None or not choices.is_on:
                return 0
            self._share_by(choices, mark)
        return 0

    def _share_by(self, choices: Choices, mark: object) -> None:
        identity = load_identity(self._directory)
        if identity is None:
            identity = new_identity()
            store_identity(self._directory, identity)
        status = Status(self._directory, identity.machine_id, self._clock())
        try:
            seconds = choices.retention_seconds
            looks = Looks(self._local, identity, choices.names, seconds, self._kept.seen())
            sending = Sending(self._local, looks, self._kept, choices, status)
        except (UltramonError, OSError) as error:
            status.went(str(error), self._clock())
            raise
        code, code_at = LoadedCode(), time.monotonic()
        status.write(self._clock(), at_once=True)
        try:
            while not self._is_ending and self._choices_mark() == mark:
                began_at = time.monotonic()
                has_more = self._step(sending, status)
                if began_at - code_at >= CODE_SECONDS:
                    code_at = began_at
                    if code.age_beside(PACKAGE):
                        self._begin_anew()
                if not has_more:
                    self._rest(self._look_seconds - (time.monotonic() - began_at))
        finally:
            status.write(self._clock(), at_once=True)
            sending.close()

    def _step(self, sending: Sending, status: Status) -> bool:
        """Look and send once; return whether there is more to send at once."""
        now, has_more = self._clock(), False
        try:
            sending.collect(now)
            has_more = sending.send(now)
            status.waiting = self._kept.waiting(sending.position)
        except (StateError, OSError) as error:
            status.went(str(error), now)
            with suppress(StateError):
                status.waiting = self._kept.waiting(sending.position)
            self._say(str(error))
        else:
            self._say("")
        return has_more

    def _say(self, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem == self._said:
            return
        if problem:
            _log.warning("agents are not shared for now: %s", problem)
        else:
            _log.info("agents are shared again")
        self._said = problem

    def _choices_mark(self) -> object:
        try:
            found = os.lstat(os.path.join(self._directory, CHOICES_FILE))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _begin_anew(self) -> None:
        """Replace this process by one of the code that is on disk now."""
        _log.info("the code of ultramon was replaced: the process begins anew with it")
        # The lock ends with this image: its descriptor is not passed on.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def _rest(self, seconds: float) -> None:
        """Wait, unless a signal has come."""
        if self._is_ending:
            return
        ready, _, _ = select.select([self._woken], (), (), max(seconds, 0.0))
        if ready:
            self._woken.recv(4096)


def share(directory: str) -> int:
    """Share from a state directory until a signal ends it; return an exit code."""
    try:
        return ShareProcess(directory).run()
    except (UltramonError, OSError) as error:
        _log.error("agents are not shared: %s", error)
        return 1
