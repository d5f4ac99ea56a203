"""`ultramon queue messages`: the notices and messages that wait for an agent."""

from __future__ import annotations

import socket
import sys
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import (
    ExitCode,
    field,
    json_line,
    moment,
    sanitize_values,
    say,
    wait_while_read,
)
from ultramon.cli.selection import open_store, store_options
from ultramon.errors import AgentNotFoundError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend
    from ultramon.notices.models import Notice

_CHECK_SECONDS = 0.1
_CHECKS_PER_READ = 10
"""A message that is due again, or whose lease has ended, changes no file: so read anyway."""


@click.command("messages")
@click.argument("agent", required=False)
@click.option("--ack", is_flag=True, help="Receive them, so that they do not come again.")
@click.option("--follow", is_flag=True, help="Wait for more until interrupted.")
@store_options
def command(
    *, agent: str | None, ack: bool, follow: bool, state_dir: str | None, json: bool
) -> ExitCode:
    """Show the notices and messages that wait for an agent.

    One a line, with --json as a JSON object. Without --ack they are only shown, in the order in
    which they were sent; with it they are received, urgent ones first, and acknowledged once they
    are printed. AGENT is an id, the beginning of one, or a label; the default is the agent named by
    ULTRAMON_AGENT_ID.
    """
    from ultramon.routing import Inbox

    backend = open_store(state_dir)
    inbox = Inbox(_recipient(backend, agent), backend=backend)
    shown, last = 0, 0
    try:
        with _news(backend, inbox.agent_id, follow=follow) as news:
            while True:
                news.begin()
                notices = inbox.receive() if ack else inbox.peek(after=last)
                for notice in notices:
                    click.echo(_line(notice, as_json=json))
                    last = notice.message_id
                if ack and notices:
                    # Only what has left this process may be acknowledged.
                    sys.stdout.flush()
                    for notice in notices:
                        inbox.acknowledge(notice)
                shown += len(notices)
                if not notices and not follow:
                    break
                if not notices:
                    news.wait()
    except KeyboardInterrupt:
        if not follow:
            raise
        return ExitCode.OK
    if not shown and not json:
        say("no messages")
    return ExitCode.OK


def _recipient(backend: Backend, agent: str | None) -> str:
    """Return the recipient's id; a recipient needs no state of its own."""
    try:
        return resolve_agent(backend, agent, "ultramon messages")
    except AgentNotFoundError:
        from ultramon.backends.queue import queue_of
        from ultramon.system.clock import SYSTEM_CLOCK

        depths = queue_of(backend).depth(now=SYSTEM_CLOCK.now())
        if agent == caller_id() or any(depth.recipient == agent for depth in depths):
            return str(agent)
        raise


class _Marks:
    """Waits for news by comparing the store's change mark ten times a second."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._mark: object = None

    def begin(self) -> None:
        """Count everything stored from now on as news."""
        self._mark = self._backend.change_mark()

    def wait(self) -> None:
        """Wait for news, for a second at most."""
        for _ in range(_CHECKS_PER_READ):
            wait_while_read(_CHECK_SECONDS)
            if self._backend.change_mark() != self._mark:
                return


class _Bell:
    """Waits for a notification from a store that can send them."""

    def __init__(self) -> None:
        self.ear, self._hammer = socket.socketpair()
        for end in (self.ear, self._hammer):
            end.setblocking(False)

    def ring(self) -> None:
        """Report news, from another thread."""
        with suppress(OSError):  # full of rings, or closed in this moment
            self._hammer.send(b".")

    def begin(self) -> None:
        """See `_Marks.begin`."""
        with suppress(BlockingIOError):
            self.ear.recv(4096)

    def wait(self) -> None:
        """See `_Marks.wait`."""
        wait_while_read(_CHECK_SECONDS * _CHECKS_PER_READ, self.ear.fileno())

    def close(self) -> None:
        """Close both ends."""
        self.ear.close()
        self._hammer.close()


@contextmanager
def _news(backend: Backend, recipient: str, *, follow: bool) -> Iterator[_Marks | _Bell]:
    """Yield the cheapest way to wait for a recipient's news."""
    from ultramon.backends.queue import can_listen, listening, queue_of

    queue = queue_of(backend)
    if not (follow and can_listen(queue)):
        yield _Marks(backend)
        return
    with closing(_Bell()) as bell, listening(queue, recipient, bell.ring):
        yield bell


def _line(notice: Notice, *, as_json: bool) -> str:
    if as_json:
        return json_line(sanitize_values(notice.model_dump(mode="json", by_alias=True)))
    when = moment(notice.queued_at.timestamp())
    sender = field(notice.agent_id) or "-"
    return f"{when}  {notice.delivery:<10}  {sender}  {sanitize(notice.text)}"
