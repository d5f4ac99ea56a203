"""The note to an agent about its own context window: facts around typed numbers, no orders.

Standard library only: hooks and monitors write the same note.
"""

from __future__ import annotations

from ultramon.context.forecast import COMPACTION, describe_compaction
from ultramon.context.ladder import FORCE_RETURN
from ultramon.errors import ConfigurationError
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import whole_percent
from ultramon.system.timestamps import clock_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.ladder import ResolvedLadder

MAX_CRITICAL_NOTE_CHARS = 500
NOTE_HEADING, NOTE_END = "Context window: ", "Your instructions are unchanged."
"""What a note begins with, and its last sentence."""
_AFFORDANCE = "What is only in this conversation can be kept by writing it to a file."


def write_note(
    tokens: int,
    limit_tokens: int | None,
    *,
    reading: tuple[str, float] | None,
    now: float,
    is_lower_bound: bool = False,
    limit_name: str | None = None,
    window_tokens: int | None = None,
    compacts: bool = False,
    has_token_budget: bool = False,
    pace: str = "",
    tasks: tuple[int, int | None] = (0, None),
    action: str = "",
    critical_note: str | None = None,
    note_from: str = FORCE_RETURN,
    rounds: bool = False,
    is_assumed: bool = False,
) -> str:
    """Return the note.

    Args:
        tokens: In the window.
        limit_tokens: The context limit; None = unknown.
        reading: Source and time (epoch seconds) of the tokens; None before the first reading.
        now: Epoch seconds.
        is_lower_bound: Whether there may be more tokens.
        limit_name: The candidate that is the limit, see `ultramon.state.models.LimitCandidate`.
        window_tokens: Tokens that the model can hold; None = unknown.
        compacts: Whether a full window is compacted.
        has_token_budget: Whether the host writes a token budget into the conversation.
        pace: The text of `describe_pace`.
        tasks: Completed tasks, and their total; None = unknown.
        action: Of the level; with ``force_return`` the note names the way out.
        critical_note: The user's sentence.
        note_from: The lowest action with which it is said.
        rounds: As for `whole_percent`.
        is_assumed: Whether the limit is the default one, as no model is named.
    """
    limit = "" if limit_tokens is None else f"{limit_tokens:,} tokens"
    held = f"at least {tokens:,}" if is_lower_bound else f"{tokens:,}"
    if reading is None:
        held = f"usage not known yet, the limit is {limit or 'unknown'}"
    elif limit_tokens is None:
        held += " tokens, the limit is unknown"
    else:
        held += f" of {limit}"
        if not is_lower_bound:
            held += f" ({whole_percent(tokens / limit_tokens, rounds=rounds)} %)"
    if reading is not None:
        source, at = reading
        held += f", {source} {clock_time(at, now)}"
    if has_token_budget:
        held += "; the session's token budget is another number"
    parts = [f"{NOTE_HEADING}{held}."]
    if is_assumed:
        parts.append("The limit is assumed: no model named.")
    if limit_tokens is not None:
        parts.append(_consequence(limit_name, window_tokens, compacts=compacts))
    parts.append(pace)
    completed, total = tasks
    if total:
        parts.append(f"{completed} of {total} items are recorded.")
    if action == FORCE_RETURN:
        parts.append(_AFFORDANCE)
    if critical_note and action in (note_from, FORCE_RETURN):
        parts.append(critical_note)
    parts.append(NOTE_END)
    return " ".join(part for part in parts if part)


def _consequence(limit_name: str | None, window_tokens: int | None, *, compacts: bool) -> str:
    happens = "requests are refused"
    if compacts:
        happens = "earlier messages are replaced by a summary; files on disk stay"
    if limit_name == "limit":
        return f"The limit was set by the user; at the model's own limit {happens}."
    of_model = ""
    if limit_name == "trigger" and window_tokens:
        of_model = f" The model itself holds {window_tokens:,}."
    return f"At the limit {happens}.{of_model}"


def describe_pace(
    forecast: dict[str, Any] | None,
    ladder: ResolvedLadder,
    level: str | None,
    tokens: int,
    limit_tokens: int | None,
) -> str:
    """Return a sentence about the turns left before the next rung; empty when unknown.

    At a rung that asks to return, and at the highest one, about those before the limit. A likely
    compaction that comes first takes its place, and one that comes later is named behind it.

    Args:
        forecast: As `ultramon.context.forecast.forecast` returns it.
        ladder: The rungs.
        level: The level now.
        tokens: In the window.
        limit_tokens: The context limit; None = unknown.
    """
    if forecast is None or limit_tokens is None:
        return ""
    likely = describe_compaction(forecast)
    height = ladder.rank(level)
    is_last = height == len(ladder.rungs)
    if is_last or (height and ladder.rungs[height - 1].action == FORCE_RETURN):
        if tokens >= limit_tokens:
            return ""
        if likely is not None:  # it lies below the limit
            return _before(forecast["rungs"][COMPACTION], f"a {likely[1]}")
        return _before(forecast.get("limit"), "the limit")
    rung = ladder.rungs[height]
    ahead = forecast["rungs"].get(rung.name)
    if likely is not None and likely[0] <= rung.tokens(limit_tokens):
        return _before(forecast["rungs"][COMPACTION], f"a {likely[1]}")
    pace = _before(ahead, f"{round(rung.nominal_ratio * 100, 1):g} %")
    return f"{pace} {likely[1].capitalize()}." if pace and likely is not None else pace


def _before(ahead: dict[str, Any] | None, rung: str) -> str:
    runway = Runway.of(ahead)
    return "" if runway is None else runway.sentence(rung)


def check_critical_note(text: str, source: str = "argument") -> str | None:
    """Return a user's sentence as one printable line; None when nothing is left of it.

    Raises:
        ConfigurationError: It is longer than `MAX_CRITICAL_NOTE_CHARS`.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) > MAX_CRITICAL_NOTE_CHARS:
        allowed = f"at most {MAX_CRITICAL_NOTE_CHARS} characters"
        raise ConfigurationError("critical_note", line[:40] + "…", allowed, source)
    return line or None
