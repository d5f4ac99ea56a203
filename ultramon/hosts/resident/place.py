"""The place of a state directory's resident: its socket, and the file that describes it.

Standard library only. ``resident.json`` is for people and for starting another one; a forwarder
reads nothing but the socket.
"""

from __future__ import annotations

import os

from ultramon.errors import StateError
from ultramon.hosts.resident.forwarder import (
    HAVE_IT,
    PAUSE_SUFFIX,
    SIZE_DIGITS,
    TAKEN_SECONDS,
    encode_request,
    is_paused,
    receive,
    socket_path,
)
from ultramon.system import compact_json
from ultramon.system.files import delete_quietly, read_private_file
from ultramon.system.processes import process_started_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FACTS_FILE = "resident.json"
LOCK_FILE = "resident.lock"
FACTS_PROGRAM = "facts"
"""What a request asks for to learn the state of the resident."""


class Place:
    """The files of the resident of one state directory.

    Args:
        directory: The state directory, absolute.
        environ: The environment, which says where sockets are.
    """

    def __init__(self, directory: str, environ: Mapping[str, str] = os.environ) -> None:
        folder = environ.get("XDG_RUNTIME_DIR")
        named = {b"XDG_RUNTIME_DIR": os.fsencode(folder)} if folder else {}
        self.directory = directory
        self.socket = os.fsdecode(socket_path(named, os.fsencode(directory)))
        self.lock = os.path.join(directory, LOCK_FILE)
        self.facts = os.path.join(directory, FACTS_FILE)

    @property
    def is_paused(self) -> bool:
        """Whether the resident is left alone, since it did not answer in time."""
        return is_paused(os.fsencode(self.socket))

    def end_pause(self) -> None:
        """Have the resident asked again."""
        delete_quietly(self.socket + os.fsdecode(PAUSE_SUFFIX))

    def running(self) -> dict[str, Any] | None:
        """Return what the resident has written about itself; None when none runs.

        ``pid``, ``startedAt`` (the mark of its start), ``version``, ``build`` (its code),
        ``socket``, ``since``.
        """
        try:
            data, _ = read_private_file(self.facts)
            facts = compact_json.loads(data)
            is_alive = process_started_at(facts["pid"]) == facts["startedAt"]
        except (OSError, StateError, ValueError, KeyError, TypeError):
            return None
        return facts if is_alive else None

    def ask(self) -> dict[str, Any] | None:
        """Ask the resident for its state; None when none answers within 250 ms.

        Besides what `running` returns: ``sessions``, ``calls``, ``atOnce`` (answered before their
        reading was stored), ``atWork`` (with this question), ``refused``, ``residentBytes``,
        ``isCurrent`` (whether its code is that of this process, as it is on disk).
        """
        import socket

        request = encode_request(FACTS_PROGRAM, os.fsencode(self.facts), b"", b"")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(TAKEN_SECONDS)
                connection.connect(self.socket)
                connection.sendall(request)
                said = receive(connection)
                connection.sendall(HAVE_IT)
            facts = compact_json.loads(said[1 + SIZE_DIGITS :])
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None
