"""`ultramon queue`: what waits, and what could not be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import (
    CommandFailed,
    ExitCode,
    age,
    field,
    moment,
    print_json,
    sanitize_values,
    say,
)
from ultramon.cli.selection import json_option, open_store, state_dir_option
from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from ultramon.backends.queue import Queue
    from ultramon.notices.message import Message

_DEPTHS = ("ready", "waiting", "claimed", "dead", "dropped", "expired")


@click.command("queue")
@click.argument("action", type=click.Choice(["depth", "dead", "retry", "drop"]))
@click.argument("which", nargs=-1, metavar="[AGENT|MESSAGE...]")
@state_dir_option()
@json_option
def command(*, action: str, which: tuple[str, ...], state_dir: str | None, json: bool) -> ExitCode:
    """Show what waits for whom, and deal with messages that died: five attempts, none acknowledged.

    `depth` counts the messages by recipient. `dead` lists the dead ones, of one recipient or of
    all, with their numbers. `retry` gives those with the numbers given five new attempts; `drop`
    deletes them.
    """
    from ultramon.backends.queue import queue_of
    from ultramon.system.clock import SYSTEM_CLOCK

    queue, now = queue_of(open_store(state_dir)), SYSTEM_CLOCK.now()
    if action == "depth":
        _show_depth(queue, which, now, as_json=json)
    elif action == "dead":
        _show_dead(queue, which, as_json=json)
    else:
        numbers = [_number(text) for text in which]
        if not numbers:
            raise click.UsageError(f"{action} needs the numbers that `ultramon queue dead` shows")
        change = queue.drop if action == "drop" else lambda number: queue.retry(number, now=now)
        done = [number for number in numbers if change(number)]
        missed = [number for number in numbers if number not in done]
        if json:
            print_json({"done": done, "notDead": missed})
        else:
            for number in done:
                click.echo(f"{number} {'dropped' if action == 'drop' else 'is tried again'}")
        if missed:
            raise CommandFailed(f"not dead, or replaced: {', '.join(map(str, missed))}")
    return ExitCode.OK


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise click.UsageError(f"{sanitize(text)} is no number of a message")
    return int(text)


def _show_depth(queue: Queue, which: tuple[str, ...], now: float, *, as_json: bool) -> None:
    depths = [one for one in queue.depth(now=now) if not which or one.recipient in which]
    if as_json:
        print_json({"recipients": [_depth_json(one._asdict()) for one in depths]})
        return
    for one in depths:
        counts = [f"{getattr(one, name):,} {name}" for name in _DEPTHS if getattr(one, name)]
        if one.oldest_at is not None:
            counts.append(f"the oldest {age(max(0.0, now - one.oldest_at))} ago")
        click.echo(f"{field(one.recipient)}  {', '.join(counts)}")
    if not depths:
        say("nothing waits")


def _depth_json(depth: dict[str, Any]) -> dict[str, Any]:
    oldest_at = depth.pop("oldest_at")
    return {**depth, "oldestAt": None if oldest_at is None else format_time(oldest_at)}


def _show_dead(queue: Queue, which: tuple[str, ...], *, as_json: bool) -> None:
    dead = [one for one in queue.dead() if not which or one.recipient in which]
    if as_json:
        print_json({"dead": [sanitize_values(_dead_json(one)) for one in dead]})
        return
    for one in dead:
        reason = field(one.last_error) or "no reason given"
        sender = f" from {field(one.sender)}" if one.sender else ""
        click.echo(
            f"{one.id}  to {field(one.recipient)}{sender}, {moment(one.queued_at)}, "
            f"{one.attempts} attempts, {reason}: {field(one.text)}"
        )
    if not dead:
        say("no dead messages")


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
