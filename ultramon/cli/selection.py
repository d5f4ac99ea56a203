"""What commands share: options, the store they open, and the agent that a person names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
from click.core import ParameterSource

from ultramon.cli.output import SeveralFound
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError
from ultramon.hosts.gone_sessions import GoneSessions
from ultramon.state.observed import ObservedAgent
from ultramon.state.record import short_id
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.terminal_text import first_of, sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.local.state_index import StateIndex
    from ultramon.backends.overview import Overview

_MAX_NAMED = 5


def state_dir_option(
    default: str = "the platform's state directory of this user",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--state-dir`` to a command."""
    return click.option(
        "--state-dir",
        type=click.Path(file_okay=False),
        envvar="ULTRAMON_STATE_DIR",
        help=f"Directory of the states.  [default: {default}]",
    )


json_option = click.option("--json", is_flag=True, help="Print JSON instead of text.")
"""Adds ``--json`` to a command."""


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--state-dir`` and ``--json`` to a command."""
    return state_dir_option()(json_option(command))


def limit_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--limit`` to a command that shows agents."""
    return click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Show the N most urgent agents at most.  [default: {default}]",
    )


def open_store(state_dir: str | None) -> Backend:
    """Open the backend of ``--state-dir``, else the one that the SDK would open."""
    from ultramon.backends.opening import open_backend

    path = state_dir_given(state_dir)
    return open_backend() if path is None else open_backend(f"file://{quote(path)}")


def state_dir_given(state_dir: str | None) -> str | None:
    """Return the path given as ``--state-dir``; None without one, even if its variable is set."""
    source = click.get_current_context().get_parameter_source("state_dir")
    if state_dir is None or source is not ParameterSource.COMMANDLINE:
        return None
    return os.path.abspath(state_dir)


def directory_of(backend: Backend) -> str:
    """Return the directory in which a server of a backend keeps its files."""
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.system.environment import state_directory

    return backend.directory.path if isinstance(backend, LocalBackend) else state_directory()


def open_index(backend: Backend, name: str) -> StateIndex:
    """Open an index of the states of a backend; it keeps nothing where there is no directory.

    Args:
        backend: The store.
        name: As for `StateIndex`.
    """
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.local.state_index import StateIndex

    return StateIndex(backend.directory if isinstance(backend, LocalBackend) else None, name)


def find_agent(backend: Backend, name: str) -> StoredAgent:
    """Find an agent by its id, else its label, else the beginning of its id.

    Raises:
        AgentNotFoundError: None fits.
        SeveralFound: Several fit.
        StateCorruptError: Its state cannot be read.
    """
    try:
        found = backend.load(name)
    except (AgentNotFoundError, InvalidAgentIdError):
        # Loading raises what is wrong with a state that the list only mentions.
        found = backend.load(find_agent_id(backend, name))
    return end_gone(backend, [found])[0]


def end_gone(backend: Backend, agents: list[StoredAgent]) -> list[StoredAgent]:
    """Return agents as they are once the sessions have ended whose client said so and is gone."""
    from ultramon.backends.toolkit import observe_stored

    seen = observe_stored(agents, SYSTEM_CLOCK.now(), whole=False)
    observed = [one for one in seen if isinstance(one, ObservedAgent)]
    if not GoneSessions(backend).end(one.record for one in observed if one.liveness.is_gone):
        return agents
    return [backend.load(one.agent_id) for one in agents]


def find_agent_id(backend: Backend, name: str) -> str:
    """Find an agent's id as `find_agent` does, whether its state can be read or not.

    The beginning of a session's id means the session, though its subagents' ids begin alike.

    Raises:
        AgentNotFoundError: None fits.
        SeveralFound: Several fit.
    """
    if not name:
        raise AgentNotFoundError(name)
    begun, labelled = _fitting(backend, name)
    if name in begun:
        return name
    ids = labelled or begun
    if not ids:
        raise AgentNotFoundError(sanitize(name))
    session = min(ids, key=len)
    if any(not other.startswith(f"{session}.") for other in ids if other != session):
        kind, some = "label" if labelled else "prefix", first_of(ids, _MAX_NAMED)
        raise SeveralFound(f"{kind} {name} fits {len(ids)} agents: {some}")
    return session


def _fitting(backend: Backend, name: str) -> tuple[list[str], list[str]]:
    """Return the agents whose id, stored or shown, has that beginning; and those so labelled."""
    overview: Overview | None = getattr(backend, "overview", None)
    if overview is not None:
        return overview.find_by_prefix(name), overview.find_by_label(name)
    begun, labelled = [], []
    for agent in backend.list_agents():
        shown = "" if agent.record is None else short_id(agent.record)
        if agent.agent_id.startswith(name) or shown.startswith(name):
            begun.append(agent.agent_id)
        if agent.record is not None and agent.record.label == name:
            labelled.append(agent.agent_id)
    return begun, labelled
