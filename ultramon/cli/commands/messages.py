"""`ultramon queue messages`: the messages that wait for an agent."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import (
    field,
    json_line,
    moment,
    sanitize_values,
    say,
    until_interrupted,
    wait_for_change,
)
from ultramon.cli.selection import open_store, store_options
from ultramon.errors import AgentNotFoundError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.notices.models import Notice

_READ_SECONDS = 1.0
"""A message that is due again, or whose lease has ended, changes no file: so read anyway."""


@click.command("messages", epilog="Example: ultramon queue messages lead --follow")
@click.argument("agent", required=False)
@click.option("--ack", is_flag=True, help="Receive them, so that they do not come again.")
@click.option("--follow", is_flag=True, help="Wait for more until interrupted.")
@store_options
def command(
    *, agent: str | None, ack: bool, follow: bool, state_dir: str | None, json: bool
) -> None:
    """Show the messages that wait for an agent, notices included.

    One a line, with --json as a JSON object. Without --ack they are only shown, in the order in
    which they were sent; with it they are received, urgent ones first, and acknowledged once they
    are printed. AGENT is an id, the beginning of one, or a label; the default is the agent named by
    ULTRAMON_AGENT_ID.
    """
    from ultramon.routing import Inbox

    backend = open_store(state_dir)
    inbox = Inbox(_recipient(backend, agent), backend=backend)
    shown, last = 0, 0
    with until_interrupted(follow=follow), _news(backend, inbox.agent_id, follow=follow) as mark:
        while True:
            # Before reading: what comes in between makes the mark another one.
            before = mark()
            notices = inbox.receive() if ack else inbox.peek(after=last)
            for notice in notices:
                click.echo(_line(notice, as_json=json))
                last = notice.message_id
            shown += len(notices)
            if ack and notices:
                # Only what has left this process may be acknowledged.
                sys.stdout.flush()
                for notice in notices:
                    inbox.acknowledge(notice)
            if not notices:
                if not follow:
                    break
                wait_for_change(mark, before, _READ_SECONDS)
        if not (shown or json):
            say("no messages")


def _recipient(backend: Backend, agent: str | None) -> str:
    """Return the recipient's id; a recipient needs no state of its own."""
    try:
        return resolve_agent(backend, agent, "ultramon queue messages")
    except AgentNotFoundError:
        from ultramon.backends.queue import queue_of
        from ultramon.system.clock import SYSTEM_CLOCK

        depths = queue_of(backend).depth(now=SYSTEM_CLOCK.now())
        if agent == caller_id() or any(depth.recipient == agent for depth in depths):
            return str(agent)
        raise


@contextmanager
def _news(backend: Backend, recipient: str, *, follow: bool) -> Iterator[Callable[[], object]]:
    """Yield a mark that changes when a message may have been stored, and is cheap to ask for."""
    from ultramon.backends.queue import can_listen, listening, queue_of

    queue = queue_of(backend)
    if not (follow and can_listen(queue)):
        yield backend.change_mark
        return
    # The notification only raises a count, so that one loop serves every store.
    arrivals: list[None] = []
    with listening(queue, recipient, lambda: arrivals.append(None)):
        yield lambda: len(arrivals)


def _line(notice: Notice, *, as_json: bool) -> str:
    if as_json:
        return json_line(sanitize_values(notice.model_dump(mode="json", by_alias=True)))
    when = moment(notice.queued_at.timestamp())
    sender = field(notice.agent_id) or "-"
    return f"{when}  {notice.delivery:<10}  {sender}  {sanitize(notice.text)}"
