"""`ultramon queue depth|dead|retry|drop`: messages that wait, and messages that died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import age, field, moment, print_json, print_result, sanitize_values, say
from ultramon.cli.selection import open_store, store_options
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.queue import Depth, Queue
    from ultramon.notices.message import Message

_DEPTHS = ("ready", "waiting", "claimed", "dead", "dropped", "expired")


def _number(text: str) -> int:
    # 18 digits fit the whole numbers of 64 bits that stores count with.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise click.UsageError(f"{sanitize(text)} is no number of a message")
    return int(text)


@click.command("depth", epilog="Example: ultramon queue depth")
@click.argument("agents", metavar="[AGENT]...", nargs=-1)
@store_options
def depth(*, agents: tuple[str, ...], state_dir: str | None, json: bool) -> None:
    """Count the messages of each recipient.

    AGENT is the id of a recipient; without one all are shown.
    """
    now = SYSTEM_CLOCK.now()
    depths = [one for one in _queue(state_dir).depth(now=now) if _is_wanted(one, agents)]
    if json:
        print_json({"recipients": [_depth_json(one) for one in depths]})
        return
    for one in depths:
        counts = [f"{getattr(one, name):,} {name}" for name in _DEPTHS if getattr(one, name)]
        if one.oldest_at is not None:
            counts.append(f"the oldest {age(max(0.0, now - one.oldest_at))} ago")
        click.echo(f"{field(one.recipient)}  {', '.join(counts)}")
    if not depths:
        say("nothing waits")


@click.command("dead", epilog="Example: ultramon queue dead lead")
@click.argument("agents", metavar="[AGENT]...", nargs=-1)
@store_options
def dead(*, agents: tuple[str, ...], state_dir: str | None, json: bool) -> None:
    """List the messages that were not acknowledged in five attempts.

    Each comes with its number. AGENT is the id of a recipient; without one all are shown.
    """
    found = [one for one in _queue(state_dir).dead() if _is_wanted(one, agents)]
    if json:
        print_json({"dead": [sanitize_values(_dead_json(one)) for one in found]})
        return
    for one in found:
        reason = field(one.last_error) or "no reason given"
        sender = f" from {field(one.sender)}" if one.sender else ""
        click.echo(
            f"{one.id}  to {field(one.recipient)}{sender}, {moment(one.queued_at)}, "
            f"{one.attempts} attempts, {reason}: {field(one.text)}"
        )
    if not found:
        say("no dead messages")


@click.command("retry", epilog="Example: ultramon queue retry 17")
@click.argument("numbers", metavar="MESSAGE...", nargs=-1, type=_number)
@store_options
def retry(*, numbers: tuple[int, ...], state_dir: str | None, json: bool) -> None:
    """Give dead messages five new attempts.

    MESSAGE is a number that `ultramon queue dead` shows.
    """
    queue, now = _queue(state_dir), SYSTEM_CLOCK.now()
    _change(lambda number: queue.retry(number, now=now), numbers, "is tried again", json)


@click.command("drop", epilog="Example: ultramon queue drop 17")
@click.argument("numbers", metavar="MESSAGE...", nargs=-1, type=_number)
@store_options
def drop(*, numbers: tuple[int, ...], state_dir: str | None, json: bool) -> None:
    """Delete dead messages.

    MESSAGE is a number that `ultramon queue dead` shows.
    """
    _change(_queue(state_dir).drop, numbers, "dropped", json)


def _queue(state_dir: str | None) -> Queue:
    from ultramon.backends.queue import queue_of

    return queue_of(open_store(state_dir))


def _is_wanted(one: Depth | Message, agents: tuple[str, ...]) -> bool:
    return not agents or one.recipient in agents


def _change(
    change: Callable[[int], bool], numbers: tuple[int, ...], done_word: str, as_json: bool
) -> None:
    if not numbers:
        raise click.UsageError("give the numbers that `ultramon queue dead` shows")
    done = [number for number in numbers if change(number)]
    missed = [number for number in numbers if number not in done]
    lines = (f"{number} {done_word}" for number in done)
    print_result({"done": done, "notDead": missed}, *lines, as_json=as_json)
    if missed:
        raise CommandFailed(f"not dead, or replaced: {', '.join(map(str, missed))}")


def _depth_json(depth: Depth) -> dict[str, Any]:
    counts = {name: getattr(depth, name) for name in _DEPTHS}
    oldest_at = None if depth.oldest_at is None else format_time(depth.oldest_at)
    return {"recipient": depth.recipient, **counts, "oldestAt": oldest_at}


def _dead_json(message: Message) -> dict[str, Any]:
    return {
        "messageId": message.id,
        "recipient": message.recipient,
        "sender": message.sender,
        "category": message.category,
        "delivery": message.delivery,
        "text": message.text,
        "facts": message.facts,
        "attempts": message.attempts,
        "queuedAt": format_time(message.queued_at),
        "lastError": message.last_error,
    }
