"""`ultramon continue`: a fresh session that continues the work of a full one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import field, print_json, say
from ultramon.cli.selection import find_agent, open_store, state_dir_given, store_options
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord


@click.command("continue", epilog="Example: ultramon continue 2a89")
@click.argument("agent", required=False)
@click.option("--text", "only_text", is_flag=True, help="Print the first message, start nothing.")
@store_options
def command(*, agent: str | None, only_text: bool, state_dir: str | None, json: bool) -> None:
    """Start a fresh session that continues the work of AGENT.

    A new session of the same host begins in the same folder. Its first message holds the goal, the
    pinned rules and the open tasks word for word, the notes, the last words and the changed files.
    The earlier session stays as it is, and nothing is typed into it.

    AGENT is an id, the beginning of one, or a label; without it, the session of this folder that
    was active last. Where this terminal cannot be given to the host, the command is printed.
    """
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.cli.continuation import write_continuation
    from ultramon.state.usage_percent import usage_words

    backend = open_store(state_dir)
    if not isinstance(backend, LocalBackend):
        raise CommandFailed("sessions are continued on their own machine, from its state directory")
    record = _chosen(backend, agent)
    found = write_continuation(record, backend.directory.path)
    if only_text:
        text = found.prompt
        if sys.stdout.isatty():  # a shell takes it word for word
            text = sanitize(text, keep_lines=True, max_chars=len(text))
        click.echo(text, nl=False)
        return
    if not found.command:
        raise CommandFailed(f"{record.host} takes no first message: --text prints it")
    given = state_dir_given(state_dir)
    line = found.shell_command(
        agent or record.agent_id, *(() if given is None else ("--state-dir", given))
    )
    if json:
        print_json(
            {
                "agentId": record.agent_id,
                "host": record.host,
                "cwd": record.cwd,
                "taken": list(found.words),
                "estimatedTokens": found.tokens,
                "prompt": found.prompt,
                "command": line,
            }
        )
        return
    name = field(record.label) or field(record.agent_id)
    say(f"{name} ({usage_words(record)} full, stays as it is): took {', '.join(found.words)}")
    say(f"a fresh window begins with about {found.tokens:,} tokens of it")
    # Without a terminal the host cannot run here: a shell gets one line for it.
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(line)
        return
    try:
        # In the place of this process: the terminal is the host's from the first key on.
        os.chdir(record.cwd or os.curdir)
        os.execvp(found.command[0], found.command)
    except OSError as error:
        raise CommandFailed(f"{found.command[0]} does not start ({error}): {line}") from error


def _chosen(backend: Backend, agent: str | None) -> StateRecord:
    """Return the state of a session: the named one, or of this folder the one active last."""
    if agent is not None:
        record = _named(backend, agent)
        # A subagent's work is a part of its session's; an agent of a program may name itself.
        if record.parent_id is None or record.session_id in (None, record.agent_id):
            return record
        return _named(backend, record.session_id)
    here = os.path.realpath(os.curdir)
    found = [
        one.record
        for one in backend.list_agents()
        if one.record is not None
        and one.record.agent_id == one.record.session_id
        and one.record.cwd is not None
        and os.path.realpath(one.record.cwd) == here
    ]
    if not found:
        raise CommandFailed(f"no session has worked in {here}: name one, see `ultramon status`")
    return max(found, key=lambda record: record.last_activity)


def _named(backend: Backend, agent: str) -> StateRecord:
    stored = find_agent(backend, agent)
    if stored.record is None:
        raise CommandFailed(str(stored.problem))
    return stored.record
