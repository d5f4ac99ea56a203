"""`ultramon messages`: what an agent is sent."""

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
"""What is due again, or whose lease has ended, changes no file: so read anyway."""


@click.command("messages")
@click.argument("agent", required=False)
@click.option("--ack", is_flag=True, help="Receive them: they do not come again.")
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@store_options
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
        with _news(backend, inbox.agent_id, follow=follow) as news:
            while True:
                news.begin()
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
                    news.wait()
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
        return resolve_agent(backend, agent, "ultramon messages")
    except AgentNotFoundError:
        from ultramon.backends.queue import queue_of
        from ultramon.system.clock import SYSTEM_CLOCK

        depths = queue_of(backend).depth(now=SYSTEM_CLOCK.now())
        if agent == caller_id() or any(depth.recipient == agent for depth in depths):
            return str(agent)
        raise


class _Marks:
    """Waits until something may have been stored, by a look at the store now and then."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._mark: object = None

    def begin(self) -> None:
        """Say that what is stored from now on is news."""
        self._mark = self._backend.change_mark()

    def wait(self) -> None:
        """Wait for news; not longer than a second."""
        for _ in range(_CHECKS_PER_READ):
            wait_while_read(_CHECK_SECONDS)
            if self._backend.change_mark() != self._mark:
                return


class _Bell:
    """Waits until a store that is not asked so often tells of a message."""

    def __init__(self) -> None:
        self.ear, self._hammer = socket.socketpair()
        for end in (self.ear, self._hammer):
            end.setblocking(False)

    def ring(self) -> None:
        """Tell; in another thread."""
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
        """Let go of both ends."""
        self.ear.close()
        self._hammer.close()


@contextmanager
def _news(backend: Backend, recipient: str, *, follow: bool) -> Iterator[_Marks | _Bell]:
    """Give what waits for news for a recipient."""
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
