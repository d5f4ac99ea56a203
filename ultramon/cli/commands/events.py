"""`ultramon events`: what happened, in the order in which it was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.commands.prune import Duration
from ultramon.cli.output import (
    ExitCode,
    NobodyFound,
    field,
    json_line,
    moment,
    percent,
    say,
    tokens,
    wait_while_read,
)
from ultramon.cli.selection import find_agent_id, open_store, store_options
from ultramon.errors import AgentNotFoundError
from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.backends.base import Backend

EVENT_TYPES = (
    "agent_assigned",
    "agent_refused",
    "agent_started",
    "context_threshold_reached",
    "context_relaxed",
    "context_epoch_started",
    "context_alert",
    "handoff_ready",
    "agent_stopped",
    "agent_stale",
    "agent_recovered",
    "agent_lost",
    "agent_expired",
    "dead_letter",
    "audit",
)
"""In the order in which a life brings them."""
_TYPE_WIDTH = max(map(len, EVENT_TYPES))
_CHECK_SECONDS = 0.1
_CHECKS_PER_READ = 20
"""Two writes in one tick of the file system's clock can leave the same mark, so read anyway."""


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time, given as RFC 3339 or as a time span before now; becomes epoch seconds."""

    name = "time"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return epoch seconds."""
        if isinstance(value, int | float):
            return value
        at = parse_time(value)
        if at is not None:
            return at
        from ultramon.system.clock import SYSTEM_CLOCK

        try:
            return SYSTEM_CLOCK.now() - Duration().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value} is neither like 2h nor like 2026-11-21T20:28:51Z", param, ctx)


@click.command("events")
@click.option(
    "--since",
    type=Moment(),
    metavar="DURATION|TIME",
    help="Only what happened since then, e.g. 2h or 2026-11-21T20:28:51Z.  [default: everything]",
)
@click.option("--run", help="Only events of this run.  [default: all runs]")
@click.option("--agent", metavar="AGENT", help="Only events of this agent.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(EVENT_TYPES),
    metavar="TYPE",
    help="Only events of this type; can be given several times.",
)
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@store_options
def command(
    *,
    since: float | None,
    run: str | None,
    agent: str | None,
    types: tuple[str, ...],
    follow: bool,
    state_dir: str | None,
    json: bool,
) -> ExitCode:
    """Show what happened to agents, in the order in which it was stored.

    One event a line: when (UTC), its type, the agent, and what there is to say. With --json one
    JSON object a line, with the names of the journal. `--since 0s --follow` shows only what is new.

    AGENT is an id, the beginning of one, or a label; the events of an agent that was deleted are
    found under its whole id.
    """
    backend = open_store(state_dir)
    agent_id = None if agent is None else _agent_id(backend, agent, may_come=follow)

    def is_wanted(event: dict[str, Any]) -> bool:
        return (
            (run is None or event.get("run") == run)
            and (agent_id is None or event.get("agentId") == agent_id)
            and (not types or event.get("type") in types)
            and (since is None or (parse_time(event.get("occurredAt")) or 0.0) >= since)
        )

    line = json_line if json else event_line
    shown = 0
    try:
        for page in pages(backend, follow=follow):
            lines = [line(event) for event in page if is_wanted(event)]
            if lines:
                click.echo("\n".join(lines))
            shown += len(lines)
    except KeyboardInterrupt:
        if not follow:
            raise
        return ExitCode.OK
    if not shown and not json:
        say("no events")
    return ExitCode.OK


def _agent_id(backend: Backend, name: str, *, may_come: bool) -> str:
    """Find whose events are meant: an agent stored, deleted, or, when following, still to come."""
    try:
        return find_agent_id(backend, name)
    except AgentNotFoundError as error:
        if not any(event.get("agentId") == name for page in pages(backend) for event in page):
            if not may_come:
                raise NobodyFound(str(error)) from error
            say(f"no agent {name} yet")
        return name


def pages(backend: Backend, *, follow: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Yield the journal in stretches; when following, for ever."""
    cursor = None
    while True:
        # Taken before reading: what is stored in between changes it.
        mark = backend.change_mark()
        page = backend.events(cursor)
        cursor = page.cursor
        if page.events:
            yield page.events
        elif not follow:
            return
        else:
            for _ in range(_CHECKS_PER_READ):
                wait_while_read(_CHECK_SECONDS)
                if backend.change_mark() != mark:
                    break


def event_line(event: dict[str, Any]) -> str:
    """Return an event as one line for people."""
    kind = field(str(event.get("type")))
    at = parse_time(event.get("occurredAt"))
    when = "?" * 20 if at is None else moment(at)
    say_more = _WORDS.get(kind)
    try:
        words = "" if say_more is None else say_more(event)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        words = "its values make no sense"
    who = field(str(event.get("agentId")))
    return f"{when}  {kind:<{_TYPE_WIDTH}}  {who}" + (f"  {sanitize(words)}" if words else "")


def _level(event: dict[str, Any]) -> str:
    used = f"{tokens(event['tokens'])} of {tokens(event['contextLimit'])} tokens"
    asked = "" if event["action"] == "none" else f": {field(event['action'])}"
    known = field(event["tokensSource"])
    return f"{field(event['level'])}{asked}, {percent(event['usageRatio'])}, {used} {known}"


def _alert(event: dict[str, Any]) -> str:
    used = f"{tokens(event['tokens'])} of {tokens(event['contextLimit'])} tokens"
    after = "" if event["command"] is None else f", after {field(event['command'])}"
    forced = ", forced" if event["forced"] else ""
    return f"{field(event['level'])}, {percent(event['usageRatio'])}, {used}{after}{forced}"


def _epoch(event: dict[str, Any]) -> str:
    epoch, reason = event["epoch"], field(event["reason"])
    before, after = tokens(event["tokensBefore"]), tokens(event["tokensAfter"])
    return f"epoch {epoch:d} by {reason}, {before} tokens before, {after} after"


def _start(event: dict[str, Any]) -> str:
    generation = event["generation"]
    return f"generation {generation:d}" if generation > 1 else ""


def _assignment(event: dict[str, Any]) -> str:
    given = event.get("handoff")
    return f"{len(event['items']):,} items" if given is None else f"handoff {_handoff(event)}"


def _end(event: dict[str, Any]) -> str:
    return ", ".join(
        field(event[name]) for name in ("outcome", "reason") if event.get(name) is not None
    )


def _handoff(event: dict[str, Any]) -> str:
    handoff = event["handoff"]
    counts = [
        f"{len(handoff[name]):,} {name}"
        for name in ("completed", "interrupted", "remaining")
        if handoff.get(name)
    ]
    return ", ".join([field(handoff["reason"]), *counts])


def _dead_letter(event: dict[str, Any]) -> str:
    return f"message {event['n']:d} could not be delivered"


def _audit(event: dict[str, Any]) -> str:
    claimed = event["claimed"]
    as_whom = "" if claimed is None else f" as {field(claimed)}"
    return f"refused {field(event['action'])}{as_whom}: {field(event['reason'])}"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "agent_assigned": _assignment,
    "agent_refused": _end,
    "agent_started": _start,
    "context_threshold_reached": _level,
    "context_relaxed": _level,
    "context_epoch_started": _epoch,
    "context_alert": _alert,
    "handoff_ready": _handoff,
    "agent_stopped": _end,
    "agent_stale": _end,
    "agent_lost": _end,
    "agent_expired": _end,
    "dead_letter": _dead_letter,
    "audit": _audit,
}
