"""Environment variables that options of commands once had: refused where they are set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = {
    "alert": "command every force history json",
    "backend": "json print-sql",
    "chaos": "every json kills run timeout",
    "check": "json quiet",
    "clear": "json",
    "context": "details json",
    "context_monitor": "critical-threshold json notify threshold use-default-thresholds",
    "demo": "agents items json kill",
    "doctor": "json",
    "events": "agent follow json run since type",
    "explain": "json",
    "handoff": "agent json notes",
    "install": "audience context-limit critical critical-note dry-run enforce enforce-dry-run force"
    " handoff-note json local pins plugin project resident secret-in status-line url user verbose"
    " via warning",
    "mcp": "agent",
    "messages": "ack follow json",
    "pin": "file json list project remove session",
    "prune": "dry-run events-older-than json older-than",
    "queue": "json",
    "relay": "agent compare deadline grace hand-over-at in-place items json program recheck resume"
    " rule run verify verify-timeout",
    "replay": "critical json limit model no-plot warning window",
    "report": "anonymous days html json",
    "resume": "all json",
    "serve": "json log-file log-format log-requests tls-cert tls-key",
    "status": "all json limit run",
    "task": "agent json result",
    "token": "json mint-file",
    "trust": "json list remove",
    "uninstall": "dry-run json local plugin project user verbose",
    "watch": "all color format interval json limit notify once run",
    "web": "allow-host behind-proxy host json link log-requests port tls-cert tls-key",
}
"""The options by the module of their command, whose names made the variable."""
_CURES = {
    "install secret-in": "",
    "install url": "",
    "install via": "",
    "mcp agent": "set ULTRAMON_AGENT_ID, or give --agent",
    "token mint-file": "give --file",
}
"""What to do instead, where it is not to give the option; empty = nothing."""
HOOK_SECRET = "ULTRAMON_HOOK_SECRET"
"""What hooks that were requests proved themselves by; no command ever read it."""


def gone_variable_errors(module: str | None = None) -> Iterator[ConfigurationError]:
    """Yield, for each variable that is set, the error that names it and what to use instead.

    Args:
        module: Of one command, such as ``context_monitor``; None = of all.
    """
    for file in FLAGS if module is None else {module} & {*FLAGS}:
        for flag in FLAGS[file].split():
            name = f"ULTRAMON_{file}_{flag}".upper().replace("-", "_")
            if value := os.environ.get(name):
                cure = _CURES.get(f"{file} {flag}", f"give --{flag}")
                allowed = f"unset, as it is no longer read{cure and f': {cure}'}"
                yield ConfigurationError(name, value, allowed, "environment")
    # An installation that takes those hooks out must not be refused for it.
    if module is None and os.environ.get(HOOK_SECRET):
        allowed = "unset, as hooks no longer send requests"
        yield ConfigurationError(HOOK_SECRET, "a secret", allowed, "environment")
