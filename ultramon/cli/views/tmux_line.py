"""The one line about all agents that a status bar shows; loads nothing that it does not need."""

from __future__ import annotations

from collections import Counter
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING

from ultramon.backends.toolkit import judge_stored
from ultramon.cli.agent_list import look_at, paused_collector
from ultramon.cli.output import action_style, field
from ultramon.cli.selection import open_store
from ultramon.context.level_words import brief_level_words
from ultramon.state.agent_rows import name_of, need_of
from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE
from ultramon.state.observed import ObservedAgent, Unreadable, checked_json
from ultramon.state.record import RETURNED_NO_TEXT, host_memory
from ultramon.state.usage_percent import usage_percent
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.backends.overview import Overview

    # How many there are of each verdict, the living one nearest to its limit, how many need a
    # person, the unreadable, and the subagents that came back without a text.
    Survey = tuple[Mapping[str, int], ObservedAgent | None, int, int, int]

_MAX_NAME_CHARS = 24
_MAX_SUBAGENTS = 20
"""Of those that ended so many are decoded, the last ones, as for the status line of a session."""
_pressure = attrgetter("pressure")
_nearness = attrgetter("pressure", "urgency")


def tmux_line(state_dir: str | None, run: str | None, *, color: bool) -> str:
    """Return the number of living agents, the one nearest to its limit, and the problems.

    Args:
        state_dir: The value of ``--state-dir``.
        run: Only agents of this run; None = of all runs.
        color: With colour codes of tmux.
    """
    backend = open_store(state_dir)
    overview: Overview | None = getattr(backend, "overview", None)
    survey = _list(backend, run) if overview is None else _ask(overview, run)
    return " · ".join(_written(text, colour if color else "") for text, colour in _parts(*survey))


def _list(backend: Backend, run: str | None) -> Survey:
    """Judge all agents by the heads of their states; decode whole what a head does not answer."""
    with paused_collector():
        changes = backend.changes(run, {})
        verdicts: Counter[str] = Counter()
        living: list[ObservedAgent] = []
        ended: list[ObservedAgent] = []
        needing = problems = 0
        for one in judge_stored(changes.changed, changes.heartbeats, SYSTEM_CLOCK.now()):
            if isinstance(one, Unreadable):
                problems += 1
                continue
            verdicts[one.liveness.verdict] += 1
            if one.liveness.verdict == ENDED and _is_subagent(one):
                ended.append(one)
            if one.liveness.verdict in (ALIVE, STALE):
                if _may_need_person(one):
                    # Only what the head leaves open is decoded: the line names one agent of
                    # thousands.
                    if isinstance(checked_json(one), Unreadable):
                        verdicts[one.liveness.verdict] -= 1
                        problems += 1
                        continue
                    needing += bool(need_of(one))
                living.append(one)
        empty = _count_empty(ended, {one.record.agent_id for one in living})
        living.sort(key=_nearness)
        # Sorted by their heads, so that only the one that is named is decoded whole.
        for one in living:
            if not isinstance(checked_json(one), Unreadable):
                return verdicts, one, needing, problems, empty
            verdicts[one.liveness.verdict] -= 1
            problems += 1
        return verdicts, None, needing, problems, empty


def _is_subagent(one: ObservedAgent) -> bool:
    return one.record.agent_id.startswith(f"{one.record.session_id}.")


def _count_empty(ended: Iterable[ObservedAgent], living: Container[str]) -> int:
    """Return how many of the last subagents of sessions at work came back without a text."""
    last = nlargest(
        _MAX_SUBAGENTS,
        (one for one in ended if one.record.session_id in living),
        key=lambda one: one.record.last_heartbeat or 0.0,
    )
    readable = (one for one in last if not isinstance(checked_json(one), Unreadable))
    return sum(host_memory(one.record).get(RETURNED_NO_TEXT) is True for one in readable)


def _may_need_person(one: ObservedAgent) -> bool:
    """Return whether an agent may need a person, by the head of its state."""
    return one.record.phase == "waiting" or one.record.action == "force_return"


def _ask(overview: Overview, run: str | None) -> Survey:
    """Read only two agents: the nearest is the first one that lives, or the first one beating.

    The store cannot count those that need a person, nor those that came back without a text.
    """
    page = partial(overview.page, run, now=SYSTEM_CLOCK.now(), machine=this_machine(), limit=1)
    verdicts = page().counts
    lost, silent = verdicts[LOST], verdicts[LOST] + verdicts[STALE]
    seen, unreadable = look_at(
        [agent for skip in sorted({lost, silent}) for agent in page(skip=skip).agents]
    )
    return verdicts, min(seen, key=_pressure, default=None), 0, len(unreadable), 0


def _parts(
    verdicts: Mapping[str, int],
    nearest: ObservedAgent | None,
    needing: int,
    unreadable: int,
    empty: int,
) -> Iterator[tuple[str, str]]:
    """Yield texts, each with its colour."""
    living = verdicts[ALIVE] + verdicts[STALE]
    yield f"um {living} agent{'' if living == 1 else 's'}", ""
    if needing:
        yield f"{needing} need you" if needing > 1 else "1 needs you", "yellow"
    if nearest is not None:
        is_known = nearest.record.threshold_status is not None
        colour = action_style(nearest.record.action).removeprefix("bold ") if is_known else ""
        yield _fullness(nearest), colour
    problems = (
        (verdicts[STALE], "stale", "yellow"),
        (verdicts[LOST], "lost", "red"),
        (unreadable, "unreadable", "yellow"),
        (empty, "came back empty", "yellow"),
    )
    for count, what, colour in problems:
        if count:
            yield f"{count} {what}", colour


def _fullness(one: ObservedAgent) -> str:
    record = one.record
    name = field(name_of(record).brief)[:_MAX_NAME_CHARS]
    if record.usage_ratio is None:
        return f"{name} {field(brief_level_words(record))}"
    return f"{name} {usage_percent(record)}% {field(brief_level_words(record))}"


def _written(text: str, colour: str) -> str:
    # tmux expands what a command printed once more.
    text = text.replace("#", "##")
    return f"#[fg={colour}]{text}#[default]" if colour else text
