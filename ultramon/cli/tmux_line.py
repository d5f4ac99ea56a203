"""The one line about all agents that a status bar shows; loads nothing that it does not need."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from ultramon.backends.base import StoredAgent
from ultramon.backends.toolkit import judge_stored
from ultramon.cli.agent_list import look_at, paused_collector
from ultramon.cli.output import action_style, field
from ultramon.cli.selection import open_index, open_store
from ultramon.errors import AgentNotFoundError, StateError
from ultramon.state.agent_rows import name_of, need_of
from ultramon.state.liveness import ALIVE, LOST, STALE
from ultramon.state.observed import ObservedAgent, Unreadable, checked_json
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.backends.local.state_index import IndexedLook
    from ultramon.backends.overview import Overview

    # How many there are of each verdict, the living one nearest to its limit, how many need a
    # person, and the unreadable.
    Survey = tuple[Mapping[str, int], ObservedAgent | None, int, int]

_MAX_NAME_CHARS = 24
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
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return (" · " if is_unicode else " - ").join(
        _written(text, colour if color else "") for text, colour in _parts(*survey)
    )


def _list(backend: Backend, run: str | None) -> Survey:
    """Judge all agents by the heads of their states; read whole what a head does not answer."""
    with open_index(backend, "heads") as index, paused_collector():
        survey = _survey(backend, run, index.look(backend, run))
        index.finish()
    return survey


def _survey(backend: Backend, run: str | None, look: IndexedLook) -> Survey:
    verdicts: Counter[str] = Counter()
    living: list[ObservedAgent] = []
    needing = problems = 0
    agents: Iterable[StoredAgent] = look.agents.values()
    while True:
        unanswered: list[str] = []
        for one in judge_stored(agents, look.heartbeats, SYSTEM_CLOCK.now()):
            if isinstance(one, Unreadable):
                problems += 1
                continue
            if one.liveness.verdict in (ALIVE, STALE):
                if _may_need_person(one):
                    if one.record.agent_id in look.restored:
                        unanswered.append(one.record.agent_id)
                        continue
                    if isinstance(checked_json(one), Unreadable):
                        problems += 1
                        continue
                    needing += bool(need_of(one))
                living.append(one)
            verdicts[one.liveness.verdict] += 1
        if not unanswered:
            if not living:
                return verdicts, None, needing, problems
            nearest = min(living, key=_nearness)
            is_read = nearest.record.agent_id not in look.restored
            if is_read and not isinstance(checked_json(nearest), Unreadable):
                return verdicts, nearest, needing, problems
            living.remove(nearest)
            verdicts[nearest.liveness.verdict] -= 1
            problems += is_read
            unanswered = [] if is_read else [nearest.record.agent_id]
        look.restored.difference_update(unanswered)
        agents = [agent for agent_id in unanswered for agent in _load(backend, run, agent_id)]


def _load(backend: Backend, run: str | None, agent_id: str) -> list[StoredAgent]:
    """Return an agent as it is by now; empty when it is gone, or in another run."""
    try:
        agent = backend.load(agent_id)
    except AgentNotFoundError:
        return []
    except StateError as error:
        return [StoredAgent(agent_id, None, None, error)]
    is_wanted = agent.record is None or run in (None, agent.record.run)
    return [agent] if is_wanted else []


def _may_need_person(one: ObservedAgent) -> bool:
    """Return whether an agent may need a person, by the head of its state."""
    return one.record.phase == "waiting" or one.record.action == "force_return"


def _ask(overview: Overview, run: str | None) -> Survey:
    """Read only two agents: the nearest is the first one that lives, or the first one beating.

    The store cannot count those that need a person.
    """
    page = partial(overview.page, run, now=SYSTEM_CLOCK.now(), host=this_host(), limit=1)
    verdicts = page().counts
    lost, silent = verdicts[LOST], verdicts[LOST] + verdicts[STALE]
    seen, unreadable = look_at(
        [agent for skip in sorted({lost, silent}) for agent in page(skip=skip).agents]
    )
    return verdicts, min(seen, key=_pressure, default=None), 0, len(unreadable)


def _parts(
    verdicts: Mapping[str, int], nearest: ObservedAgent | None, needing: int, unreadable: int
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
    )
    for count, what, colour in problems:
        if count:
            yield f"{count} {what}", colour


def _fullness(one: ObservedAgent) -> str:
    record = one.record
    name = field(name_of(record).brief)[:_MAX_NAME_CHARS]
    if record.usage_ratio is None:
        return f"{name} {field(record.threshold_status) or 'unknown'}"
    # Rounded down: 84.6 % shown as 85 % would deny what the level says.
    return f"{name} {int(record.usage_ratio * 100 + 1e-9)}% {field(record.threshold_status)}"


def _written(text: str, colour: str) -> str:
    # tmux expands what a command printed once more.
    text = text.replace("#", "##")
    return f"#[fg={colour}]{text}#[default]" if colour else text
