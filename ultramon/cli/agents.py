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
    from ultramon.core.liveness import HostIdentity, Liveness
    from ultramon.core.record import StateRecord

SDK_HOST = "sdk"
_MAX_NAMED = 5
_SHORT_ID_CHARS = 8
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

    path = state_dir_given(state_dir)
    return open_backend() if path is None else open_backend(f"file://{quote(path)}")


def state_dir_given(state_dir: str | None) -> str | None:
    """Return the path of ``--state-dir``; None where only its variable is set, or nothing."""
    source = click.get_current_context().get_parameter_source("state_dir")
    if state_dir is None or source is not ParameterSource.COMMANDLINE:
        return None
    return os.path.abspath(state_dir)


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

    @property
    def rungs_reached(self) -> dict[str, int]:
        """How often each rung was reached in this epoch."""
        rungs = self.record.announced.get("rungs")
        if not isinstance(rungs, dict):
            return {}
        return {name: count for name, count in rungs.items() if isinstance(count, int)}

    def to_json(self) -> dict[str, Any]:
        """Return the state as in its file, and the verdict."""
        return {
            **self.record.to_json(),
            "liveness": self.liveness.verdict,
            "livenessReason": self.liveness.reason,
            "heartbeatAgeSeconds": self.liveness.heartbeat_age_seconds,
        }


def short_id(record: StateRecord) -> str:
    """Return an id as it is shown: of a host's session only the beginning, as nobody chose it."""
    session_id, own = record.session_id, record.agent_id
    if record.host == SDK_HOST or not (session_id and own.startswith(session_id)):
        return own
    return session_id[:_SHORT_ID_CHARS] + own[len(session_id) :]


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
        one = see(agent.record, agent.heartbeat_at, now, host)
        if isinstance(one, SeenAgent):
            seen.append(one)
        else:
            unreadable.append(one)
    return sorted(seen, key=lambda one: one.urgency), unreadable


def see(
    record: StateRecord, heartbeat_at: float | None, now: float, host: HostIdentity
) -> SeenAgent | Unreadable:
    """Judge one agent as of now."""
    try:
        one = SeenAgent(record, judge(record, heartbeat_at, now, host))
        one.urgency, one.runway_turns, one.to_json()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        return Unreadable(record.agent_id, f"its values make no sense: {error}")
    return one


def without_ended(seen: list[SeenAgent]) -> list[SeenAgent]:
    """Return the agents that have not ended, lost ones among them."""
    return [one for one in seen if one.liveness.verdict != ENDED]


def agents_json(seen: list[SeenAgent], unreadable: list[Unreadable]) -> dict[str, Any]:
    """Return agents as the commands print them with ``--json``."""
    return {
        "agents": [one.to_json() for one in seen],
        "unreadable": [{"agentId": one.agent_id, "reason": one.reason} for one in unreadable],
    }


class Picture:
    """The agents as they are stored, brought up to date by reading only what changed.

    Attributes:
        seen: Who is shown, most urgent first.
        unreadable: Who cannot be shown.
        hidden: How many ended agents are left out.
    """

    def __init__(self, backend: Backend, run: str | None, *, show_all: bool) -> None:
        self.seen: list[SeenAgent] = []
        self.unreadable: list[Unreadable] = []
        self.hidden = 0
        self._backend = backend
        self._run = run
        self._show_all = show_all
        self._marks: dict[str, Any] = {}
        self._stored: dict[str, StoredAgent] = {}
        self._rungs: dict[str, tuple[int, dict[str, int]]] | None = None

    def refresh(self) -> list[tuple[SeenAgent, str]]:
        """Look again; return who reached which rung since the last look, nobody at the first."""
        look = self._backend.look(self._run, self._marks)
        for agent_id in look.removed:
            self._stored.pop(agent_id, None)
        self._stored.update((agent.agent_id, agent) for agent in look.changed)
        beats = look.heartbeats
        everyone, self.unreadable = look_at(
            [
                agent._replace(heartbeat_at=beats.get(agent.agent_id))
                for agent in self._stored.values()
            ]
        )
        self.seen = everyone if self._show_all else without_ended(everyone)
        self.hidden = len(everyone) - len(self.seen)
        return self._crossings(everyone)

    def _crossings(self, everyone: list[SeenAgent]) -> list[tuple[SeenAgent, str]]:
        before, after = self._rungs, {}
        crossings = []
        for one in everyone:
            epoch, rungs = after[one.record.agent_id] = one.record.epoch, one.rungs_reached
            if before is None:
                continue
            known_epoch, known = before.get(one.record.agent_id, (epoch, {}))
            crossings += [
                (one, rung)
                for rung, count in rungs.items()
                if count > (known.get(rung, 0) if known_epoch == epoch else 0)
            ]
        # An agent that cannot be read for a moment has not reached its rungs anew afterwards.
        unread = {agent.agent_id for agent in self.unreadable}
        after.update(
            (agent_id, old) for agent_id, old in (before or {}).items() if agent_id in unread
        )
        self._rungs = after
        return crossings


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
    # Loading raises what is wrong with a state that the list only mentions.
    return backend.load(find_agent_id(backend, name))


def _begins(agent: StoredAgent, name: str) -> bool:
    """Return whether an agent's id, whole or as it is shown, begins like that."""
    shown = "" if agent.record is None else short_id(agent.record)
    return agent.agent_id.startswith(name) or shown.startswith(name)


def find_agent_id(backend: Backend, name: str) -> str:
    """Find the id of the agent that a person means, whether its state can be read or not.

    The beginning of a session's id means the session, though its subagents' ids begin alike.

    Raises:
        AgentNotFoundError: Nothing fits.
        SeveralFound: Several fit.
    """
    agents = backend.list_agents()
    if any(agent.agent_id == name for agent in agents):
        return name
    labelled = [agent for agent in agents if agent.record and agent.record.label == name]
    found = labelled or [agent for agent in agents if _begins(agent, name)]
    if not found or not name:
        raise AgentNotFoundError(sanitize(name))
    ids = [agent.agent_id for agent in found]
    session = min(ids, key=len)
    if any(not other.startswith(f"{session}.") for other in ids if other != session):
        more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
        kind = "label" if labelled else "prefix"
        raise SeveralFound(
            f"{kind} {name} fits {len(ids)} agents: {', '.join(ids[:_MAX_NAMED])}{more}"
        )
    return session
