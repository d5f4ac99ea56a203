"""Starts a resident, and ends one that hangs; called by hook processes.

Standard library only, and cheap: the start of a session pays for it.
"""

from __future__ import annotations

import os
import sys

from ultramon.hosts.resident.place import Place
from ultramon.system.files import close_quietly, open_private
from ultramon.system.processes import shares_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.calls.store import HookStore

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
_KEPT = ("HOME", "PATH", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "TMPDIR")
"""The environment of a resident: nothing of one session, which it would take for all of them."""


START_SECONDS = 60.0
"""How often a resident is started in the place of one that is gone, at most."""
_MARK_SUFFIX = ".resident-start"


def start(store: HookStore, *, is_session_start: bool) -> None:
    """Start a resident where the installation asked for one; wait for nothing.

    Where one runs already, or is just being started by another session, the new one ends.

    Args:
        store: Of this call, which no resident has answered.
        is_session_start: Whether a session begins; else one is started once in a while only.

    Raises:
        OSError: The system refused.
        StateError: The state directory is not safe to use.
    """
    if not (store.installed.resident and sys.executable):
        return
    process_id = store.host.dialect.process_id(store.environ) or os.getppid()
    # What this process starts ends with the sandbox of the hook, if there is one.
    if not (shares_processes(process_id) and _is_due(store, is_session_start)):
        return
    null = (os.devnull, os.O_RDWR, 0)
    arguments = (store.directory.path, store.host.name, str(process_id))
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", _PROGRAM, *arguments],
        {name: store.environ[name] for name in _KEPT if name in store.environ},
        # The host waits until no process holds its pipes, and kills what is in the group of a hook.
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, *null) for fd in range(3)],
        setsid=True,
    )


def _is_due(store: HookStore, is_session_start: bool) -> bool:
    """Return whether to start one now, and note that."""
    path = os.path.join(store.directory.path, store.host.name + _MARK_SUFFIX)
    try:
        age_seconds = abs(store.now - os.lstat(path).st_mtime)
    except FileNotFoundError:
        age_seconds = START_SECONDS
    # What takes a resident down at once, as a sandbox does, would be started for ever.
    if age_seconds < START_SECONDS and not is_session_start:
        return False
    close_quietly(open_private(path))
    os.utime(path, (store.now, store.now), follow_symlinks=False)
    return True


def end_hung(store: HookStore) -> bool:
    """Kill a resident that did not answer in time: it may hold the lock of an agent for ever.

    Nothing is lost with it: whatever it was asked, the asking process does itself.

    Returns:
        Whether there was one.
    """
    place = Place(store.directory.path, store.environ)
    running = place.running() if place.is_paused else None
    if running is None:
        return False
    import signal

    store.fail("", f"the resident {running['pid']} did not answer and held a lock; it was killed")
    os.kill(running["pid"], signal.SIGKILL)
    place.end_pause()
    return True
