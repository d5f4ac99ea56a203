"""Health checks and sizes of a store on this machine, and the form of their results."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS, Journal
from ultramon.backends.local.journal_check import examine_journal
from ultramon.backends.local.schema import SCHEMA_VERSION
from ultramon.errors import StateError
from ultramon.system.files import make_private_directory
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.local.repair import Repair

_SHOWN_PROBLEMS = 3


def examine_local(backend: LocalBackend) -> Iterator[Finding]:
    """Check a state directory and its journal; nothing is created or migrated."""
    directory = backend.directory
    if not os.path.lexists(directory.path):
        yield Finding("directory", OK, f"{directory.path} is made when the first agent starts")
        return
    try:
        make_private_directory(directory.path)
        yield Finding("directory", OK, f"{directory.path} is private to this user")
        yield from examine_journal(directory.path)
        yield _judge_states(backend)
    except StateError as error:
        yield Finding("directory", PROBLEM, str(error))


def examine_foreign(backend: Backend) -> Iterator[Finding]:
    """Check a store of another distribution: whether it answers, and its states can be read."""
    try:
        yield _judge_states(backend)
    except StateError as error:
        yield Finding("store", PROBLEM, str(error))


def _judge_states(backend: Backend) -> Finding:
    agents = backend.list_agents()
    damaged = [agent.agent_id for agent in agents if agent.record is None]
    if not damaged:
        return Finding("states", OK, f"{len(agents):,}, all readable")
    names = ", ".join(damaged[:_SHOWN_PROBLEMS]) + (", …" if damaged[_SHOWN_PROBLEMS:] else "")
    cure = "`ultramon status` says why; an agent that starts again sets its own aside"
    return Finding(
        "states", WARNING, f"{len(damaged):,} of {len(agents):,} unreadable: {names}", cure
    )


def migrate_local(backend: LocalBackend) -> tuple[int, int] | None:
    """Bring a journal up to date; return the versions before and after, None without a journal."""
    with closing(Journal(backend.directory.path)) as journal:
        before = journal.read(0, journal.version)
        if before is None:
            return None
        with journal.transaction(TOOL_TIMEOUT_SECONDS):
            return before, SCHEMA_VERSION


def repair_local(backend: LocalBackend) -> Repair | None:
    """Repair a journal; return what was done, None where it is sound or there is none.

    Raises:
        StateWriteError: It is locked, or the system refused; the journal is as it was.
        StateCorruptError: It is no file of this user.
    """
    with closing(Journal(backend.directory.path)) as journal:
        findings = examine_journal(backend.directory.path)
        if all(one.status == OK for one in findings if one.check == "journal"):
            return None
        return journal.repair(TOOL_TIMEOUT_SECONDS)


def measure_local(backend: LocalBackend) -> dict[str, Any]:
    """Return the sizes of a state directory, as ``backend stats --json`` prints them."""
    agents = backend.list_agents()
    records = [agent.record for agent in agents if agent.record is not None]
    with closing(Journal(backend.directory.path)) as journal:
        counted = journal.select(1, "SELECT count(*) FROM events")
    return {
        "agents": {
            "stored": len(agents),
            "active": sum(record.active for record in records),
            "bytes": sum(
                _size(backend.directory.file(agent.agent_id)) for agent in agents if agent.record
            ),
        },
        "events": {"stored": counted[0][0] if counted else 0},
        "journal": {"bytes": sum(_size(journal.path + end) for end in ("", "-wal"))},
    }


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
