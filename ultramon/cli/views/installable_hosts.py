"""The coding agents of this machine, and which of them report themselves."""

from __future__ import annotations

import os
import shutil
from typing import Any

import click

from ultramon.cli.output import print_json
from ultramon.errors import UltramonError
from ultramon.system.terminal_text import sanitize


def print_hosts(directory: str, *, as_json: bool) -> None:
    """Print every host: whether its program is here, and whether ultramon is installed in it.

    Args:
        directory: The state directory.
        as_json: Print ``name``, ``program`` (its path, null where it is not on PATH),
            ``installed`` (null where its settings cannot be read) and ``problem``.
    """
    from ultramon.hosts.registry import find_hosts

    rows = [_facts(host.name, directory) for host in find_hosts().usable]
    rows.sort(key=lambda row: (row["program"] is None, row["name"]))
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(sanitize(f"{row['name'].ljust(width)}  {_state_of(row)}"))


def _facts(name: str, directory: str) -> dict[str, Any]:
    from ultramon.hosts.install.plans import SetupRequest
    from ultramon.hosts.registry import find_host

    setup = find_host(name).setup
    # A host's program may have another name than the host; the words that resume a session have it.
    program = shutil.which((*setup.resume_words(""), "")[0])
    installed, problem = None, None
    try:
        # What a removal would take out is what is installed; nothing is carried out.
        plan = setup.plan_removal(SetupRequest(name, os.getcwd(), directory, None))
        installed = plan.changes_settings
    except (UltramonError, OSError) as error:
        problem = str(error)
    return {"name": name, "program": program, "installed": installed, "problem": problem}


def _state_of(row: dict[str, Any]) -> str:
    if row["installed"]:
        return "reports itself"
    if row["problem"] is not None:
        return f"unknown: {row['problem']}"
    if row["program"] is None:
        return "not on this machine"
    return f"is here: ultramon install {row['name']}"
