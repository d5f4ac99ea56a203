"""What commands share: options, the store they open, and the agent that a person names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
from click.core import ParameterSource

from ultramon.cli.exit_codes import CommandFailed, SeveralFound
from ultramon.cli.output import say
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError
from ultramon.hosts.gone_sessions import GoneSessions
from ultramon.state.observed import ObservedAgent
from ultramon.state.record import short_id
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import working_directory
from ultramon.system.terminal_text import first_of, sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.overview import Overview

DELETED_DIRECTORY = "the working directory was deleted: change to one that is there"
LOOK_SECONDS = 1.0
"""How long a screen waits for a database that does not answer."""
_MAX_NAMED = 5
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_TOKEN_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
_AMOUNT = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])"


def state_dir_option(
    default: str = "the platform's state directory of this user",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--state-dir`` to a command."""
    return click.option(
        "--state-dir",
        type=click.Path(file_okay=False),
        envvar="ULTRAMON_STATE_DIR",
        show_envvar=True,
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


machine_option = click.option(
    "--machine",
    metavar="NAME",
    help="Of a database only agents of this machine: its name, id or host name.",
)
"""Adds ``--machine`` to a command that shows agents."""


def time_span(text: str) -> float:
    """Return the seconds of a time span such as ``90s``, ``12h``, ``1h30m`` or ``7d``.

    Raises:
        click.BadParameter: It is none.
    """
    if re.fullmatch(f"({_AMOUNT})+", text) is None:
        raise click.BadParameter(
            f"{text} is no time span: it is not a number followed by s, m, h, d or w, e.g. 1h30m"
        )
    return sum(float(amount) * _UNITS[unit] for amount, unit in re.findall(_AMOUNT, text))


def token_count(text: str) -> int:
    """Return a number of tokens such as ``500000``, ``500k`` or ``1.5M``.

    Raises:
        click.BadParameter: It is none, or none that is above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kM]?)", text)
    count = int(float(found[1]) * _TOKEN_UNITS[found[2]]) if found else 0
    if not count:
        raise click.BadParameter(
            f"{text} is no number of tokens: it is not above 0, with k or M behind it or nothing"
        )
    return count


def open_screen_store(state_dir: str | None) -> Backend:
    """Open the backend of a command that shows agents: it waits a second for a dead database."""
    return open_store(state_dir, look_seconds=LOOK_SECONDS)


def open_store(
    state_dir: str | None, *, delivers: bool = True, look_seconds: float | None = None
) -> Backend:
    """Open the backend of ``--state-dir``, else the one that the SDK would open.

    Args:
        state_dir: As the option gave it.
        delivers: Whether to store first what was kept on this machine while the store was away.
        look_seconds: How long to wait to learn that a database does not answer; None = its own
            time.
    """
    from ultramon.backends.opening import open_backend
    from ultramon.backends.toolkit import deliver_kept

    path = state_dir_given(state_dir)
    backend = open_backend() if path is None else open_backend(f"file://{quote(path)}")
    limit_waits = getattr(backend, "limit_waits", None)
    if look_seconds is not None and limit_waits is not None:
        limit_waits(look_seconds)
    # Stored first, so that the command shows it too.
    if delivers and not deliver_kept(backend):
        say("Note: not all that was kept on this machine during an outage is stored yet")
    return backend


def state_dir_given(state_dir: str | None) -> str | None:
    """Return the path given as ``--state-dir``; None without one, even if its variable is set."""
    source = click.get_current_context().get_parameter_source("state_dir")
    # Where only the variable is set, ULTRAMON_BACKEND still decides.
    if state_dir is None or source is not ParameterSource.COMMANDLINE:
        return None
    return os.path.abspath(state_dir)


def directory_of(backend: Backend) -> str:
    """Return the directory in which a server of a backend keeps its files."""
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.system.environment import state_directory

    return backend.directory.path if isinstance(backend, LocalBackend) else state_directory()


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
    """Return agents as they are once the sessions have ended whose host said so and is gone."""
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
    # Labels first: behind prefixes those that are the beginning of an id could not be reached.
    ids = labelled or begun
    if not ids:
        raise AgentNotFoundError(sanitize(name))
    # The ids of subagents begin with that of their session: the beginning means the session.
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


def open_shared_store(state_dir: str | None) -> Backend:
    """Open the backend of a command that starts processes on it."""
    backend = open_store(state_dir)
    if backend.url == "memory:":
        raise CommandFailed("ULTRAMON_BACKEND is memory:, which processes cannot share")
    return backend


def present_directory() -> str:
    """Return the working directory.

    Raises:
        CommandFailed: It was deleted.
    """
    directory = working_directory()
    if directory is None:
        raise CommandFailed(DELETED_DIRECTORY)
    return directory


def project_directory(layer: str | None = None) -> str:
    """Return the directory whose settings count; where it was deleted, the user's own.

    Raises:
        CommandFailed: It was deleted, and a layer of a project's settings is asked for.
    """
    directory = working_directory()
    if directory is not None or layer in ("project", "local"):
        return directory or present_directory()
    say(f"Note: {DELETED_DIRECTORY}; settings of a project are not looked at")
    return os.path.expanduser("~")


def chosen_directory(state_dir: str | None) -> str:
    """Return the state directory that hooks shall use."""
    from ultramon.system.environment import state_directory

    return os.path.abspath(os.path.expanduser(state_dir)) if state_dir else state_directory()
