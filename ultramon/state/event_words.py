"""What an event of the journal says, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.state.level_share import share_in, share_sentence
from ultramon.state.usage_percent import exact_ratio, whole_percent
from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import parse_time
from ultramon.system.wording import field, moment, plural, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMED_ITEMS = 3


def _percent(event: dict[str, Any]) -> str:
    ratio = exact_ratio(event["usageRatio"], event["tokens"], event["contextLimit"])
    return f"{whole_percent(ratio, rounds=event.get('roundPercent') is True)} %"


def _usage(event: dict[str, Any]) -> str:
    used, limit = tokens(event["tokens"]), tokens(event["contextLimit"])
    return f"{_percent(event)}, {used} of {limit} tokens"


def _share(event: dict[str, Any]) -> str:
    said = share_sentence(field(event["level"]), share_in(event), event["contextLimit"])
    return f"; {said}" if said else ""


def _level(event: dict[str, Any]) -> str:
    asked = "" if event["action"] == "none" else f": {field(event['action'])}"
    known = field(event["tokensSource"])
    used = f"{_percent(event)}," if event["tokens"] is None else _usage(event)
    return f"{field(event['level'])}{asked}, {used} {known}{_share(event)}"


def _alert(event: dict[str, Any]) -> str:
    after = "" if event["command"] is None else f", after {field(event['command'])}"
    forced = ", forced" if event["forced"] else ""
    return f"{field(event['level'])}, {_usage(event)}{after}{forced}{_share(event)}"


def _epoch(event: dict[str, Any]) -> str:
    epoch, reason = event["epoch"], field(event["reason"])
    before, after = tokens(event["tokensBefore"]), tokens(event["tokensAfter"])
    return f"epoch {epoch:d} by {reason}, {before} tokens before, {after} after"


def _start(event: dict[str, Any]) -> str:
    generation = event["generation"]
    return f"generation {generation:d}" if generation > 1 else ""


def _assignment(event: dict[str, Any]) -> str:
    given = event.get("handoff")
    return _items(event) if given is None else f"handoff {_handoff(event)}"


def _items(event: dict[str, Any]) -> str:
    items = event["items"]
    names = [field(item) for item in items[:_NAMED_ITEMS]]
    more = ["…"] if len(items) > _NAMED_ITEMS else []
    return ": ".join([plural(len(items), "item"), *filter(None, [", ".join([*names, *more])])])


def _step(event: dict[str, Any]) -> str:
    return f"{field(event['step'])} of {field(event['item'])}"


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


def _enforcement(event: dict[str, Any]) -> str:
    return f"{'dry run: ' * event['dryRun']}{field(event['reason'])}"


def _plan(event: dict[str, Any]) -> str:
    level, limit = field(event["level"]), field(event["limit"])
    percent = whole_percent(event["usedRatio"], rounds=False)
    resets_at = parse_time(event["resetsAt"])
    resets = "?" if resets_at is None else moment(resets_at)
    return f"{level}, {percent} % of {limit} used, resets {resets}"


def _budget(event: dict[str, Any]) -> str:
    level, name = field(event["level"]), field(event["budget"])
    percent = whole_percent(event["usedRatio"], rounds=False)
    least = "" if event["isWhole"] is True else "≥ "
    if "limitUsd" in event:
        amounts = f"${event['spentUsd']:,.2f} of {event['limitUsd']:,.2f}"
    else:
        amounts = f"{tokens(event['spentTokens'])} of {tokens(event['limitTokens'])} tokens"
    empties_at = parse_time(event["emptiesAt"])
    forecast = "" if empties_at is None else f", at this pace empty {moment(empties_at)}"
    return f"{level}, {least}{percent} % of {name} spent, {least}{amounts}{forecast}"


def _audit(event: dict[str, Any]) -> str:
    claimed = event["claimed"]
    as_whom = "" if claimed is None else f" as {field(claimed)}"
    return f"refused {field(event['action'])}{as_whom}: {field(event['reason'])}"


_WORDS: dict[str, Callable[[dict[str, Any]], str] | None] = {
    "agent_assigned": _assignment,
    "agent_refused": _end,
    "agent_started": _start,
    "context_threshold_reached": _level,
    "context_relaxed": _level,
    "context_epoch_started": _epoch,
    "context_alert": _alert,
    "checkpoint_stored": _handoff,
    "handoff_ready": _handoff,
    "return_enforced": _enforcement,
    "agent_stopped": _end,
    "agent_stale": _end,
    "agent_recovered": None,
    "agent_lost": _end,
    "agent_expired": _end,
    "items_added": _items,
    "context_spawned": lambda event: f"process {event['pid']:d}",
    "step_completed": _step,
    "items_claimed": _items,
    "items_verified": _items,
    "items_rejected": _items,
    "context_closed": _end,
    "items_set_aside": _items,
    "items_reopened": _items,
    "dead_letter": lambda event: f"message {event['n']:d} could not be delivered",
    "plan_threshold_reached": _plan,
    "budget_threshold_reached": _budget,
    "audit": _audit,
}
EVENT_TYPES = tuple(_WORDS)
"""In the order of an agent's life."""


def event_words(event: dict[str, Any]) -> str:
    """Return what an event says beyond its type, its agent and its time; often nothing."""
    say_more = _WORDS.get(field(str(event.get("type"))))
    try:
        return "" if say_more is None else sanitize(say_more(event))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # One odd event must not end a list of all.
        return "its values make no sense"
