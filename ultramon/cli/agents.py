"""Which agent is meant, and how the stored agents are listed: shared by the commands on states."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click
from click.core import ParameterSource

from ultramon.cli.output import SeveralFound, sanitize
from ultramon.core.liveness import ENDED, LOST, STALE, judge, this_host
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.core.liveness import Liveness
    from ultramon.core.record import StateRecord

_MAX_NAMED = 5
_URGENCY = {"force_return": 1, "prepare_handoff": 2}


def state_dir_option(
    default: str = "the platform's state directory of this user",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--state-dir`` to a command."""
    return click.option(
        "--state-dir",
        type=click.Path(file_okay=False),
        envvar="ULTRAMON_STATE_DIR",
        show_envvar=True,
        help=f"Where the states are kept.  [default: {default}]",
    )


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` to a command."""
    return click.option(
        "--json", is_flag=True, show_envvar=True, help="Print JSON instead of text."
    )(command)


def open_store(state_dir: str | None) -> Backend:
    """Open the backend that a command works on: ``--state-dir``, else what the SDK would open."""
    from ultramon.backends import open_backend

    context = click.get_current_context()
    if state_dir is None or context.get_parameter_source("state_dir") is not (
        ParameterSource.COMMANDLINE
    ):
        return open_backend()
    return open_backend(f"file://{quote(os.path.abspath(state_dir))}")


class SeenAgent(NamedTuple):
    """A readable agent with the verdict about its life."""

    record: StateRecord
    liveness: Liveness

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Sorts the agent that needs somebody first: lost, then by level, then by usage."""
        record, verdict = self.record, self.liveness.verdict
        if verdict == LOST:
            rank = 0
        elif verdict == ENDED:
            rank = 5
        else:
            rank = _URGENCY.get(record.action, 3 if verdict == STALE else 4)
        return rank, -(record.usage_ratio or 0.0), record.agent_id

    @property
    def runway_turns(self) -> int | None:
        """Turns before the next rung, None when unknowable."""
        rungs = (self.record.forecast or {}).get("rungs")
        ahead = [rung.get("turns") for rung in rungs.values()] if isinstance(rungs, dict) else []
        return min((turns for turns in ahead if isinstance(turns, int)), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the state as in its file, and the verdict."""
        return {
            **self.record.to_json(),
            "liveness": self.liveness.verdict,
            "livenessReason": self.liveness.reason,
            "heartbeatAgeSeconds": self.liveness.heartbeat_age_seconds,
        }


class Unreadable(NamedTuple):
    """A stored agent that cannot be shown."""

    agent_id: str
    reason: str


def look_at(agents: list[StoredAgent]) -> tuple[list[SeenAgent], list[Unreadable]]:
    """Judge stored agents as of now, most urgent first; set aside what cannot be read."""
    from ultramon.clock import SYSTEM_CLOCK

    now, host = SYSTEM_CLOCK.now(), this_host()
    seen: list[SeenAgent] = []
    unreadable: list[Unreadable] = []
    for agent in agents:
        if agent.record is None:
            unreadable.append(Unreadable(agent.agent_id, str(agent.problem)))
            continue
        try:
            verdict = judge(agent.record, agent.heartbeat_at, now, host)
            one = SeenAgent(agent.record, verdict)
            one.urgency, one.runway_turns, one.to_json()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A state with a right checksum can still hold numbers that no agent ever had.
            unreadable.append(Unreadable(agent.agent_id, f"its values make no sense: {error}"))
            continue
        seen.append(one)
    return sorted(seen, key=lambda one: one.urgency), unreadable


def find_agent(backend: Backend, name: str) -> StoredAgent:
    """Find the agent that a person means: by id, else by label, else by the start of its id.

    Raises:
        AgentNotFoundError: Nothing fits.
        SeveralFound: Several fit.
        StateCorruptError: It is there and cannot be read.
    """
    try:
        return backend.load(name)
    except (AgentNotFoundError, InvalidAgentIdError):
        pass
    agents = backend.list_agents()
    labelled = [agent for agent in agents if agent.record and agent.record.label == name]
    found = labelled or [agent for agent in agents if agent.agent_id.startswith(name)]
    if not found or not name:
        raise AgentNotFoundError(sanitize(name))
    if len(found) > 1:
        ids = [agent.agent_id for agent in found]
        more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
        kind = "label" if labelled else "prefix"
        raise SeveralFound(
            f"{kind} {name} fits {len(ids)} agents: {', '.join(ids[:_MAX_NAMED])}{more}"
        )
    # Loading again raises what is wrong with a state that the list only mentions.
    return backend.load(found[0].agent_id)
