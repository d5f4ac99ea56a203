"""Starts a resident, and ends one that hangs; called by hook processes.

Standard library only, and cheap: the start of a session pays for it.
"""

from __future__ import annotations

import os
import sys

from ultramon.hosts.resident.place import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.store import HookStore

_KEPT = ("HOME", "PATH", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "TMPDIR")
"""The environment of a resident: nothing of one session, which it would take for all of them."""


def start(store: HookStore) -> None:
    """Start a resident where the installation asked for one; wait for nothing.

    Where one runs already, or is just being started by another session, the new one ends.

    Raises:
        OSError: The system refused.
    """
    script = store.host.resident_script
    if not (script and store.installed.resident and sys.executable):
        return
    null = (os.devnull, os.O_RDWR, 0)
    process_id = store.host.process_id(store.environ) or os.getppid()
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", script, store.directory.path, str(process_id)],
        {name: store.environ[name] for name in _KEPT if name in store.environ},
        # The client waits until nobody holds its pipes, and kills what is in the group of a hook.
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, *null) for fd in range(3)],
        setsid=True,
    )


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
