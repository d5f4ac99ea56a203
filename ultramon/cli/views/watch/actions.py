"""The actions on one agent: going to it, and asking it to hand over."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import field
from ultramon.cli.resumption import resume_command
from ultramon.state.agent_rows import name_of
from ultramon.state.liveness import ENDED, LOST
from ultramon.state.record import SDK_HOST, host_memory
from ultramon.system.processes import parent_of, this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.backends.base import Backend
    from ultramon.state.observed import ObservedAgent

_TMUX_SECONDS = 5.0
_MAX_ANCESTORS = 64


class Way(NamedTuple):
    """The way to an agent."""

    commands: tuple[tuple[str, ...], ...]
    """Programs to run one after the other; none = there is no way."""
    takes_terminal: bool
    """Whether the last one needs this terminal for itself."""
    words: str
    """What is done, or why nothing is."""


def way_to(
    one: ObservedAgent, environ: Mapping[str, str], pane_processes: Callable[[], dict[str, int]]
) -> Way:
    """Return the way to an agent: its tmux pane, else the command that resumes its session.

    A session that runs elsewhere is not started a second time.

    Args:
        one: The agent; for a subagent, its session.
        environ: Of this process.
        pane_processes: Returns the process of each pane of tmux; none without tmux.
    """
    record, name = one.record, field(str(name_of(one.record)))
    if record.hostname != this_machine().hostname:
        return Way((), False, f"{name} runs on {field(record.hostname) or 'another machine'}")
    # Two hosts on one transcript lose work: a session that runs is never started again.
    if one.liveness.verdict not in (ENDED, LOST):
        pane = host_memory(record).get("tmuxPane")
        panes = pane_processes() if isinstance(pane, str) else {}
        if isinstance(pane, str) and pane in panes and _is_below(record.pid, panes[pane]):
            select = (("tmux", "select-window", "-t", pane), ("tmux", "select-pane", "-t", pane))
            # Within tmux its client is switched: attaching there would nest one in the other.
            if environ.get("TMUX"):
                return Way((*select, ("tmux", "switch-client", "-t", pane)), False, f"at {name}")
            return Way((*select, ("tmux", "attach-session", "-t", pane)), True, f"back from {name}")
        where = f"process {record.pid}" if record.pid else "a process that did not name itself"
        if record.host == SDK_HOST:
            return Way((), False, f"{name} is run by a program, {where}: it has no terminal")
        return Way((), False, f"{name} runs in another terminal, {where}")
    command = resume_command(record)
    if command is None:
        return Way((), False, f"{name} has ended, and is no session that can be resumed")
    shell = environ.get("SHELL") or "/bin/sh"
    return Way(((shell, "-c", command),), True, f"back from {name}")


def way_to_continue(backend: Backend, one: ObservedAgent) -> Way:
    """Return the way to a fresh session that continues one; it takes this terminal."""
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.cli.continuation import write_continuation

    name = field(str(name_of(one.record)))
    if not isinstance(backend, LocalBackend):
        return Way((), False, f"{name} reports to a server: continue it on its own machine")
    try:
        found = write_continuation(one.record, backend.directory.path)
    except CommandFailed as error:
        return Way((), False, str(error))
    # The directory is an argument, so that the shell does not read its name as words.
    if not found.command:
        return Way((), False, f"{name}: {one.record.host} takes no first message")
    start = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"', one.record.cwd or os.curdir)
    return Way(((*start, *found.command),), True, f"back from the session that continues {name}")


def pane_processes() -> dict[str, int]:
    """Return the process of each pane of tmux; none where tmux does not answer."""
    if shutil.which("tmux") is None:
        return {}
    try:
        done = subprocess.run(
            ["tmux", "list-panes", "-a", "-F", "#{pane_id} #{pane_pid}"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_TMUX_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.split() for line in done.stdout.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _is_below(pid: int | None, ancestor: int) -> bool:
    """Return whether a process runs in a pane: panes are numbered anew by every tmux server."""
    for _ in range(_MAX_ANCESTORS):
        if pid == ancestor:
            return True
        if not pid or pid == 1:
            return False
        pid = parent_of(pid)
    return False


def run_way(way: Way) -> str:
    """Go; return why that failed, empty when it did not."""
    for number, command in enumerate(way.commands, 1):
        shows = way.takes_terminal and number == len(way.commands)
        try:
            done = subprocess.run(
                command,
                capture_output=not shows,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=None if shows else _TMUX_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]}: {error}"
        # A program that had the terminal has shown its error there.
        if done.returncode and not shows:
            return f"{command[0]}: {(done.stderr or '').strip() or done.returncode}"
    return ""


def hand_over_question(one: ObservedAgent) -> str:
    """Return what a person confirms before an agent is asked to hand over."""
    name = field(str(name_of(one.record)))
    when = "within about a second" if one.record.host == SDK_HOST else "with its next tool call"
    return f"Ask {name} to hand over its work? It reads that {when}."
