"""`ultramon messages`: what an agent is sent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ultramon.cli.agents import json_option, open_store, state_dir_option
from ultramon.cli.calling import caller_id, meant
from ultramon.cli.output import (
    ExitCode,
    field,
    json_line,
    moment,
    sanitize,
    sanitize_values,
    say,
    wait_while_read,
)
from ultramon.errors import AgentNotFoundError

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.models import Notice

_CHECK_SECONDS = 0.1
_CHECKS_PER_READ = 10
"""What is due again, or whose lease has ended, changes no file: so read anyway."""


@click.command("messages")
@click.argument("agent", required=False)
@click.option("--ack", is_flag=True, show_envvar=True, help="Receive them: they do not come again.")
@click.option("--follow", is_flag=True, show_envvar=True, help="Go on until interrupted.")
@state_dir_option()
@json_option
def command(
    *, agent: str | None, ack: bool, follow: bool, state_dir: str | None, json: bool
) -> ExitCode:
    """Show the notices and messages that wait for an agent, one a line.

    Without --ack they are only looked at, in the order in which they were sent. With it they are
    received, urgent ones first, and acknowledged once they are printed. With --json one JSON object
    a line. AGENT is an id, the beginning of one, or a label; without it the agent named by
    ULTRAMON_AGENT_ID is meant.
    """
    from ultramon.routing import Inbox

    backend = open_store(state_dir)
    inbox = Inbox(_recipient(backend, agent), backend=backend)
    shown, last = 0, 0
    try:
        while True:
            # Taken before reading: what is stored in between changes it.
            mark = backend.change_mark()
            notices = inbox.receive() if ack else inbox.peek(after=last)
            for notice in notices:
                click.echo(_line(notice, as_json=json))
                last = notice.message_id
            if ack and notices:
                # Only what has left this process may be forgotten.
                sys.stdout.flush()
                for notice in notices:
                    inbox.acknowledge(notice)
            shown += len(notices)
            if not notices and not follow:
                break
            if not notices:
                _wait(backend, mark)
    except KeyboardInterrupt:
        if not follow:
            raise
        return ExitCode.OK
    if not shown and not json:
        say("no messages")
    return ExitCode.OK


def _recipient(backend: Backend, agent: str | None) -> str:
    """Return who is meant; one who receives need have no state of its own."""
    try:
        return meant(backend, agent, "ultramon messages")
    except AgentNotFoundError:
        from ultramon.backends.queue import queue_of
        from ultramon.clock import SYSTEM_CLOCK

        depths = queue_of(backend).depth(now=SYSTEM_CLOCK.now())
        if agent == caller_id() or any(depth.recipient == agent for depth in depths):
            return str(agent)
        raise


def _wait(backend: Backend, mark: object) -> None:
    for _ in range(_CHECKS_PER_READ):
        wait_while_read(_CHECK_SECONDS)
        if backend.change_mark() != mark:
            return


def _line(notice: Notice, *, as_json: bool) -> str:
    if as_json:
        return json_line(sanitize_values(notice.model_dump(mode="json", by_alias=True)))
    when = moment(notice.queued_at.timestamp())
    sender = field(notice.agent_id) or "-"
    return f"{when}  {notice.delivery:<10}  {sender}  {sanitize(notice.text)}"
