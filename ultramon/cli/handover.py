"""Asks an agent, in the name of a person, to hand over its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import field
from ultramon.state.agent_rows import name_of
from ultramon.state.liveness import ENDED, LOST
from ultramon.state.record import SDK_HOST
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.state.observed import ObservedAgent

DEADLINE_SECONDS = 300.0
"""The time that an agent has to hand over: a session reads the request with its next tool call."""


def ask_to_hand_over(backend: Backend, one: ObservedAgent) -> None:
    """Ask an agent to hand over now.

    Raises:
        CommandFailed: It has ended, or would never read the request.
        UltramonError: The agent is gone, or the store refused.
    """
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.local.inbox_flags import raise_flag
    from ultramon.hosts.calls.handling import PERSON
    from ultramon.hosts.installed_choices import AGENT, BOTH, InstalledChoices, choices_path

    record = one.record
    name = field(str(name_of(record)))
    if one.liveness.verdict in (ENDED, LOST):
        raise CommandFailed(f"{name} has ended: there is no agent to ask")
    local = backend if isinstance(backend, LocalBackend) else None
    is_hosted = record.host != SDK_HOST
    if is_hosted:
        if local is None:
            raise CommandFailed(
                f"{name} reports to a server: only on its own machine can it be asked"
            )
        installed = InstalledChoices.load(choices_path(local.directory.path, record.host))
        if installed.audience not in (AGENT, BOTH):
            raise CommandFailed(
                f"{name} would not read it: {record.host} is installed with --audience"
                f" {installed.audience}"
            )
    backend.put_request(
        record.agent_id,
        {
            "requestId": random_hex(8),
            "kind": "return",
            "by": PERSON,
            "generation": record.generation,
            "epoch": record.epoch,
            "deadlineAt": format_time(SYSTEM_CLOCK.now() + DEADLINE_SECONDS),
        },
    )
    if is_hosted and local is not None:
        # A resident answers calls without a look at the state while no flag is raised.
        raise_flag(local.directory.path, record.agent_id)
