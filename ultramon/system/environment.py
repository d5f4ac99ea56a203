"""Environment variables outside the tables of settings; cheap to import."""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = {
    "AGENT_ID": "Id of the agent that a process is; the caller of its commands.",
    "AUDIENCE": "Who is warned of a Claude Code session: `agent`, `orchestrator`, `both`, `none`.",
    "BACKEND": "URL of the store; without it the state directory.",
    "CONFIG": "Path of the configuration file.",
    "DISABLED": "`1` turns every call into a no-op that stores nothing.",
    "LEVELS": "Warning and critical in whole percents, such as `70,85`: the table `[levels]`.",
    "NO_ALERT": "`1` turns alerts off, see `enabled` of `[alerts]`.",
    "NO_RESIDENT": "`1` has each hook do everything itself, see `install --resident`.",
    "NOTIFY": "Recipient of notices about an agent from its start on: `self` or `parent`.",
    "NOTIFY_THRESHOLDS": "Usage ratios of those notices, rising, separated by commas.",
    "OTEL": "`1` has fleets and `ultramon serve` export [metrics](metrics.md) to OpenTelemetry.",
    "PARENT_ID": "Id of the agent that started this one.",
    "RELAY_MAX_CONTEXTS": "Most contexts of a relay, see `relay --max-contexts`.",
    "RELAY_MAX_USD": "Most dollars of a relay at list price, see `relay --max-usd`.",
    "RUN": "The orchestration that an agent belongs to; without it `default`.",
    "SERVE_ALLOW_HOST": "Host names that a server answers too, see `serve --allow-host`.",
    "SERVE_BEHIND_PROXY": "Proxies that a server believes, see `serve --behind-proxy`.",
    "SERVE_HOST": "Address of a server, see `serve --host`.",
    "SERVE_PORT": "Port of a server, see `serve --port`.",
    "STATE_DIR": "Directory of states, journal and queue; without it the platform's for this user.",
    "TOKEN_FILE": "File with the token by which this agent proves who it is.",
}
"""The variables, without ``ULTRAMON_``, beside those of the tables of settings, with their
meanings."""
GIVEN_VARIABLES = {
    "ASSIGNMENT": "By `Fleet.supervise`, in its processes: their place in the journal.",
    "RELAY": "By a relay: its name; installed hooks then leave the session to it.",
    "RELAY_SESSION": "By a relay, in a context: the session that its hooks report.",
    "STATUS_LINE": "By a status line, in one that it runs: `1`, so that none runs itself again.",
    "SUPERVISED": "By `Fleet.supervise`, in its processes: the orchestrator that started them.",
    "WORKER": "By a relay, in its setup, checks and contexts: the number of the worker, from 1.",
}
"""Likewise the variables that ultramon itself gives to processes that it starts: no settings."""


def disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``ULTRAMON_DISABLED`` turns every call into a no-op."""
    return is_on("ULTRAMON_DISABLED", environ)


def given_or_named(given: str | None, name: str, variable: str) -> str | None:
    """Return the given id, else the one in a variable; None without either.

    Raises:
        InvalidAgentIdError: It is no valid id; empty is an error for a given one only.
    """
    if given is not None:
        return check_agent_id(given, name)
    named = os.environ.get(variable)
    return check_agent_id(named, variable) if named else None


def state_directory() -> str:
    """Return the state directory: ``ULTRAMON_STATE_DIR``, else the platform's for this user.

    Raises:
        ConfigurationError: The variable is not set and this user has no home directory.
    """
    chosen = os.environ.get("ULTRAMON_STATE_DIR")
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    # Imported here: a process that was given a directory does not need to load it.
    from platformdirs import user_state_dir

    try:
        return user_state_dir("ultramon", appauthor=False)
    except RuntimeError as error:
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError("ULTRAMON_STATE_DIR", chosen, allowed, "environment") from error


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable says yes; a missing one says no."""
    return is_yes(environ.get(name, ""))


def is_yes(text: str) -> bool:
    """Return whether the text of a variable says yes, in any usual spelling; empty says no."""
    return text.lower() not in ("", "0", "false", "no", "off")
