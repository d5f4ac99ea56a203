"""The coding agents of this machine, and which of them report themselves."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import print_json
from ultramon.errors import UltramonError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from ultramon.hosts.port import Host


def print_hosts(directory: str, *, as_json: bool) -> None:
    """Print every host: whether its program is here, and whether ultramon is installed in it.

    Args:
        directory: The state directory.
        as_json: Print ``name``, ``program`` (its path, null where it is not on PATH),
            ``installed`` (null where its settings cannot be read), ``problem`` and
            ``transcriptsOnly`` (nothing can be installed).
    """
    from ultramon.hosts.registry import find_hosts

    rows = [_facts(host, directory) for host in find_hosts().usable]
    rows.sort(key=lambda row: (row["transcriptsOnly"], row["program"] is None, row["name"]))
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(sanitize(f"{row['name'].ljust(width)}  {_state_of(row)}"))


def _facts(host: Host, directory: str) -> dict[str, Any]:
    from ultramon.hosts.install.plans import SetupRequest

    name, setup = host.name, host.setup
    # A host's program may have another name than the host; the words that resume a session have it.
    program = shutil.which((*setup.resume_words(""), "")[0])
    installed, problem = None, None
    try:
        # What a removal would take out is what is installed; nothing is carried out.
        if host.has_hooks:
            plan = setup.plan_removal(SetupRequest(name, os.getcwd(), directory, None))
            installed = plan.changes_settings
    except (UltramonError, OSError) as error:
        problem = str(error)
    return {
        "name": name,
        "program": program,
        "installed": installed,
        "problem": problem,
        "transcriptsOnly": not host.has_hooks,
    }


def _state_of(row: dict[str, Any]) -> str:
    if row["transcriptsOnly"]:
        return "transcripts only: ultramon report"
    if row["installed"]:
        return "reports itself"
    if row["problem"] is not None:
        return f"unknown: {row['problem']}"
    if row["program"] is None:
        return "not on this machine"
    return f"is here: ultramon install {row['name']}"
