"""Machines that mirror their agents into a PostgreSQL store, each as a user of its own."""

from __future__ import annotations

import time

import pytest

from helpers.postgres_roles import login, server  # noqa: F401
from ultramon.backends.postgres.admin.roles import MACHINE, READER
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.store.mirror import MirroredState, Reading
from ultramon.system.processes import MachineIdentity
from ultramon.testing.contract.states import start, write
from ultramon.testing.samples import make_event, make_record

ATTIC, CELLAR = "m0123abcd", "mfedc9876"
DAY_SECONDS = 86_400


def use(url, machine_id, name, agents):
    """Let a machine send agents: each with its host, model and increments of its readings."""
    backend = PostgresBackend(url)
    mirror = backend.mirror(machine_id)
    mirror.announce(name=name, sent_fields=(), retention_seconds=None)
    now = time.time()
    for position, (tag, host, model, parent, used) in enumerate(agents, 1):
        agent_id = f"{machine_id}-{tag}"
        record = make_record(
            agent_id,
            at=now,
            host=host,
            model=model,
            parent_id=parent,
            machine=MachineIdentity(machine_id, ""),
            pid=None,
            pid_started_at=None,
        )
        readings = [
            Reading(agent_id, now - ago, host, model, 1, "normal", peak, 200_000, *rest)
            for ago, peak, *rest in used
        ]
        crossed = [make_event(agent_id, "context_threshold_reached", at=now, level="warning")]
        mirror.store(position, [MirroredState(record, now)], crossed, readings)
    backend.close()


@pytest.fixture
def team(postgres_store, login, monkeypatch):
    """A reader's URL of a store with two machines, and an agent that stores there itself.

    A screen waits for as long as a machine with much to do may take.
    """
    monkeypatch.setattr("ultramon.cli.selection.LOOK_SECONDS", 60.0)
    use(
        login(MACHINE),
        ATTIC,
        "attic",
        [
            ("1", "claude-code", "opus", None, [(0, 9_000, 10, 500, 20, 7, 0.5), (1, 100)]),
            ("2", "claude-code", "haiku", f"{ATTIC}-1", [(0, 1_000, 1, None, None, 3, 0.25)]),
            ("3", "codex", "gpt-5", None, [(DAY_SECONDS, 5_000, 2, 3, 4, 5, None)]),
            ("4", "codex", "gpt-5", None, [(90 * DAY_SECONDS, 1)]),
        ],
    )
    use(login(MACHINE), CELLAR, None, [("1", "claude-code", "opus", None, [(0, 70_000)])])
    backend = PostgresBackend(postgres_store)
    now = time.time()
    write(backend, start(backend, now=now), at=now, measured_at=now, estimated_tokens=400)
    backend.close()
    return login(READER)
