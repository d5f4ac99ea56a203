"""The rows that would be sent, and taking them back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.connection.address import parse_address
from ultramon.backends.postgres.connection.database import Database
from ultramon.backends.postgres.store.mirror import Mirror, MirroredState
from ultramon.backends.postgres.store.states import States
from ultramon.share.identity import forget_identity, load_identity, new_identity
from ultramon.share.kept import Kept
from ultramon.share.looks import Looks
from ultramon.share.status import delete_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.share.choices import Choices

_NO_DATABASE = "postgresql://localhost/nothing"
_EVENTS_AT_ONCE = 500


def rows_to_send(
    directory: str, names: tuple[str, ...], retention_seconds: float, machine_name: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row that a database without any would get, with its table; changes nothing.

    Made by the code that sends them. Times are by this machine's clock; ids are those that are
    sent, but for a machine that has not shared yet: those are of another secret each time.

    Args:
        directory: The state directory.
        names: What is sent by name.
        retention_seconds: As for `Looks`.
        machine_name: What the machine is called.

    Raises:
        StateError: The directory cannot be read.
    """
    identity = load_identity(directory) or new_identity()
    local, now = LocalBackend(directory), time.time()
    looks = Looks(local, identity, names, retention_seconds, {})
    # Never asked: the rows are made without it.
    database = Database(parse_address(_NO_DATABASE))
    mirror = Mirror(database, States(database), identity.machine_id)
    machine = {"machine_id": identity.machine_id, "name": machine_name, "first_seen": now,
               "last_seen": now, "sent_fields": ",".join(sorted(names)),
               "retention_seconds": retention_seconds}  # fmt: skip
    yield "machines", machine
    found = looks.look(now)
    states = [
        MirroredState(record, now if agent_id in looks.alive else None)
        for agent_id, record in found.states.items()
    ]
    yield from mirror.rows(states, (), found.readings).by_table()
    cursor = None
    while True:
        events, behind = looks.events(cursor, _EVENTS_AT_ONCE, now)
        yield from mirror.rows((), events, ()).by_table()
        if behind == (cursor or "0"):
            break
        cursor = behind
    local.close()


def erase(directory: str, choices: Choices) -> dict[str, int] | None:
    """Delete all rows of this machine in the database, then its identity and what waits here.

    Call it while no process shares. What is shared later bears other ids.

    Returns:
        The number of deleted rows, by table; None where this machine never shared.

    Raises:
        StateError: The database does not take it now; nothing was forgotten here.
    """
    identity = load_identity(directory)
    if identity is None:
        return None
    backend = PostgresBackend(choices.read_url(), max_connections=1)
    try:
        deleted = backend.mirror(identity.machine_id).erase()
    finally:
        backend.close()
    Kept(directory).delete()
    delete_status(directory)
    forget_identity(directory)
    return deleted
