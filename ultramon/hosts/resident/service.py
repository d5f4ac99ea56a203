"""The resident: takes calls over its socket, and ends when no process needs it any more.

One for each state directory: the process that holds the lock file. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ultramon.errors import StateError
from ultramon.hosts import failure_log
from ultramon.hosts.calls.switches import state_directory
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.resident.exchange import Exchange, GoneError, Request
from ultramon.hosts.resident.forwarder import OLDER, REFUSED
from ultramon.hosts.resident.loaded_code import LoadedCode
from ultramon.hosts.resident.place import FACTS_PROGRAM, Place
from ultramon.hosts.resident.sharing import Starter, try_start
from ultramon.system import compact_json
from ultramon.system.files import (
    delete_quietly,
    make_private_directory,
    open_private,
    replace_file,
)
from ultramon.system.locks import Lock, LockedError
from ultramon.system.processes import process_started_at, resident_bytes
from ultramon.system.timestamps import format_time
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ultramon.hosts.resident.served_hosts import ServedHosts

IDLE_SECONDS = 15 * 60.0
TICK_SECONDS = 5.0
SUCCESSION_SECONDS = 5.0
"""How long newer code waits for the resident with the older one to end."""
MAX_CALLS = 32
"""At a time; further ones are handled by their own processes."""
MAX_KEPT = 64
"""So many connections are kept at a time, of hosts that ask by themselves."""
MAX_SESSIONS = 1_024
_BACKLOG = 64
_LOOK_AGAIN_SECONDS = 0.02


class Resident:
    """The resident of a state directory.

    Args:
        directory: The state directory, absolute.
        hosts: What requests may ask for; their choices say whether there shall be a resident.
        environ: The environment, which says where sockets are.
        idle_seconds: So long after the last session, or the last call, it ends.
        tick_seconds: How often it looks whether it is still needed.
    """

    def __init__(
        self,
        directory: str,
        hosts: ServedHosts,
        environ: Mapping[str, str] = os.environ,
        *,
        idle_seconds: float = IDLE_SECONDS,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._tick_seconds = tick_seconds
        self._hosts = hosts
        self._code = LoadedCode()
        self._directory = directory
        self._place = Place(directory, environ)
        self._environ = environ
        self._sharing, self._sharing_failure = Starter(directory, environ), ""
        self._sessions: dict[int, str] = {}
        self._lock = threading.Lock()
        self._calls = self._kept_count = 0
        self._call_count = self._refused_count = 0
        self._is_retiring = False
        self._wake, self._woken = socket.socketpair()
        self._began_at = time.time()
        self._needed_at = time.monotonic()

    # --- its life

    def run(self, session_pid: int) -> int:
        """Answer until no process needs it any more.

        Args:
            session_pid: The host whose session has started it.

        Returns:
            0; what goes wrong is a line in the failure log.
        """
        os.chdir("/")
        # `bind` makes the socket and takes no mode: it is private from its first moment.
        os.umask(0o077)
        # `set_wakeup_fd` takes no descriptor that blocks.
        self._wake.setblocking(False)
        signal.signal(signal.SIGTERM, self._retire)
        signal.set_wakeup_fd(self._wake.fileno())
        self._note_session(session_pid)
        deadline = time.monotonic() + SUCCESSION_SECONDS
        while time.monotonic() < deadline:
            try:
                with Lock(self._place.lock, open_private, 0.0):
                    self._serve()
                return 0
            except LockedError:
                running = self._place.running()
                if running is not None and running.get("build") == self._code.build:
                    return 0  # of two that were started at once the other was faster
                time.sleep(_LOOK_AGAIN_SECONDS)
            except (OSError, StateError) as error:
                self._fail(f"the resident does not run: {error}")
                return 0
        return 0

    def _retire(self, *_signal: object) -> None:
        self._is_retiring = True
        self._wake.send(b"!")

    def _serve(self) -> None:
        lock_mark, path = os.stat(self._place.lock).st_ino, self._place.socket
        _make_folder(os.path.dirname(path), self._environ)
        delete_quietly(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            os.chmod(path, 0o600)
            socket_mark = os.lstat(path).st_ino
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            self._place.end_pause()
            # Behind `listen`: a process that reads the file may ask at once.
            replace_file(self._place.facts, compact_json.dumps(self._describe()).encode("ascii"))
            self._share()
            looked_at = time.monotonic()
            while not self._is_retiring:
                ready, _, _ = select.select([listening, self._woken], (), (), self._tick_seconds)
                if listening in ready:
                    self._accept(listening)
                if time.monotonic() - looked_at < self._tick_seconds:
                    continue
                looked_at = time.monotonic()
                is_known = _is_at(self._place.lock, lock_mark) and _is_at(path, socket_mark)
                if not (is_known and self._is_wanted()):
                    break
                self._share()
            if _is_at(path, socket_mark):
                delete_quietly(path)
        deadline = time.monotonic() + SUCCESSION_SECONDS
        while self._calls and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_SECONDS)
        delete_quietly(self._place.facts)
        if _is_at(self._place.lock, lock_mark):
            delete_quietly(self._place.lock)  # still held: a process that opened it opens it anew

    def _share(self) -> None:
        """Start the process that shares agents, where one is wanted and none runs."""
        failure = try_start(self._sharing)
        if failure and failure != self._sharing_failure:
            self._fail(failure)
        self._sharing_failure = failure

    def _is_wanted(self) -> bool:
        """Return whether an installation wants a resident, and a session lives or did just now."""
        try:
            is_chosen = any(map(self._is_chosen, self._hosts.names))
        except (StateError, OSError):
            return True  # it is not known; a call says so in the failure log
        with self._lock:
            for pid, mark in list(self._sessions.items()):
                if process_started_at(pid) != mark:
                    del self._sessions[pid]
            if self._sessions:
                self._needed_at = time.monotonic()
        return is_chosen and time.monotonic() - self._needed_at < self._idle_seconds

    def _is_chosen(self, host_name: str) -> bool:
        return InstalledChoices.load(choices_path(self._directory, host_name)).resident

    def _note_session(self, pid: int) -> None:
        mark = process_started_at(pid)
        with self._lock:
            self._needed_at = time.monotonic()
            if mark is not None and len(self._sessions) < MAX_SESSIONS:
                self._sessions[pid] = mark

    # --- calls

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # the forwarder has gone, or no descriptor is left
        # Its forwarder sees the end at once, and its own process handles the call.
        if not self._begin_call():
            connection.close()
            return
        connection.setblocking(True)
        threading.Thread(target=self._take_calls, args=(connection,), daemon=True).start()

    def _begin_call(self) -> bool:
        """Count a call that is at work; return whether there may be one more."""
        with self._lock:
            may_begin = self._calls < MAX_CALLS
            self._calls += may_begin
        return may_begin

    def _end_call(self) -> None:
        with self._lock:
            self._calls -= 1

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """End a call that was counted; what went wrong with it is a line in the failure log."""
        try:
            yield
        except GoneError:
            pass  # its own process handles the call
        except Exception as error:  # noqa: BLE001 - the other sessions must continue
            self._fail(f"the resident: {type(error).__name__}: {error}")
        finally:
            self._end_call()

    def _take_calls(self, connection: socket.socket) -> None:
        """Answer the calls of a connection: one of a forwarder, one after the other of a host."""
        with self._at_work(), connection:
            while self._take_call(connection) and self._wait_for_call(connection):
                pass

    def _take_call(self, connection: socket.socket) -> bool:
        """Answer a call; return whether further ones may come."""
        exchange = Exchange(connection)
        # Of a process in another namespace of ids it could not be seen that it ended.
        if exchange.user_id != os.geteuid() or not exchange.process_id:
            return False
        request = exchange.read_request()
        late = self._answer(request, exchange)
        is_host: bool = exchange.process_id == request.parent_pid  # a forwarder ends with its call
        if late is None:
            return is_host
        if not is_host:
            late()
            return False
        with self._lock:
            self._calls += 1
        # The host may make its next call before this one is stored.
        threading.Thread(target=self._work_late, args=(late,), daemon=True).start()
        return True

    def _work_late(self, late: Callable[[], None]) -> None:
        with self._at_work():
            late()

    def _wait_for_call(self, connection: socket.socket) -> bool:
        """Wait for the next call of a host, which counts only then; return whether it came."""
        with self._lock:
            is_kept = self._kept_count < MAX_KEPT
            self._kept_count += is_kept
        if not is_kept:
            return False
        self._end_call()
        try:
            connection.settimeout(None)
            has_come = bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            has_come = False
        finally:
            with self._lock:
                self._kept_count -= 1
                self._calls += 1
        return has_come and not self._is_retiring and self._calls <= MAX_CALLS

    def _answer(self, request: Request, exchange: Exchange) -> Callable[[], None] | None:
        """Answer a request; return what is left to do of it, None = nothing."""
        age = self._code.age_beside(request.package)
        if request.program == FACTS_PROGRAM:
            facts = self._describe() | {"isCurrent": age == 0}
            exchange.answer(compact_json.dumps(facts).encode("ascii"))
            return None
        self._call_count += 1
        if age:
            self._refused_count += 1
            exchange.end(OLDER if age > 0 else REFUSED)
            if age > 0:
                self._retire()
            return None
        host_name, _, name = request.program.partition(" ")
        if host_name not in self._hosts.names:
            exchange.take()  # loading takes longer than a forwarder waits for the first word
        served = self._hosts.find(host_name)
        if served is None or name not in served.programs or not self._is_meant(request):
            self._refused_count += 1
            exchange.end(REFUSED)
            return None
        self._note_session(served.host.dialect.process_id(request.environ) or request.parent_pid)
        return served.programs[name](request, exchange)

    def _is_meant(self, request: Request) -> bool:
        """Return whether a request is about this state directory, with the same home."""
        directory = os.path.abspath(state_directory(request.environ, request.choices_path))
        return directory == self._directory and (
            request.environ.get("HOME") == self._environ.get("HOME")
        )

    # --- what it says about itself

    def _describe(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "startedAt": process_started_at(os.getpid()),
            "version": __version__,
            "build": self._code.build,
            "python": sys.executable,
            "socket": self._place.socket,
            "since": format_time(self._began_at),
            "sessions": len(self._sessions),
            "calls": self._call_count,
            "atOnce": self._hosts.at_once_count,
            "atWork": self._calls,
            "refused": self._refused_count,
            "residentBytes": resident_bytes(),
        }

    def _fail(self, problem: str) -> None:
        failure_log.record(self._directory, self._hosts.first, "", "", problem, now=time.time())


def _make_folder(folder: str, environ: Mapping[str, str]) -> None:
    """Make the folder of sockets where it is ultramon's; that of the system is not made here."""
    if folder != (environ.get("XDG_RUNTIME_DIR") or "").rstrip("/"):
        make_private_directory(folder)


def _is_at(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False
