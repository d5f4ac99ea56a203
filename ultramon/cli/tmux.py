"""The one line about all agents that a status bar shows; loads nothing that it does not need."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ultramon.cli.agents import (
    SeenAgent,
    Unreadable,
    look_at,
    open_store,
    short_id,
    without_ended,
)
from ultramon.cli.output import field
from ultramon.core.liveness import LOST, STALE

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_NAME_CHARS = 24
_COLOURS = {"force_return": "red", "prepare_handoff": "yellow"}


class _Part(NamedTuple):
    text: str
    colour: str = ""


def tmux_line(state_dir: str | None, run: str | None, *, color: bool) -> str:
    """Return how many agents live, the one nearest to its limit, and who needs a look.

    Args:
        state_dir: The value of ``--state-dir``.
        run: Only agents of this run; None = of all runs.
        color: With colour codes of tmux.
    """
    seen, unreadable = look_at(open_store(state_dir).list_agents(run))
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return (" · " if is_unicode else " - ").join(
        _coloured(part) if color else _escaped(part.text) for part in _parts(seen, unreadable)
    )


def _parts(seen: Sequence[SeenAgent], unreadable: Sequence[Unreadable]) -> list[_Part]:
    present = without_ended(list(seen))
    living = [one for one in present if one.liveness.verdict != LOST]
    parts = [_Part(f"um {len(living)} agent{'' if len(living) == 1 else 's'}")]
    nearest = min(living, key=_distance, default=None)
    if nearest is not None:
        parts.append(_Part(_fullness(nearest), _COLOURS.get(nearest.record.action, "green")))
    verdicts = Counter(one.liveness.verdict for one in present)
    if verdicts[STALE]:
        parts.append(_Part(f"{verdicts[STALE]} stale", "yellow"))
    if verdicts[LOST]:
        parts.append(_Part(f"{verdicts[LOST]} lost", "red"))
    if unreadable:
        parts.append(_Part(f"{len(unreadable)} unreadable", "yellow"))
    return parts


def _distance(one: SeenAgent) -> tuple[bool, bool, float]:
    """Sort by what the agent is asked to do, then by how full it is; silence does not count."""
    action = one.record.action
    ratio = one.record.usage_ratio
    return action != "force_return", action != "prepare_handoff", -(ratio or 0.0)


def _fullness(one: SeenAgent) -> str:
    record = one.record
    name = field(short_id(record))[:_MAX_NAME_CHARS]
    if record.usage_ratio is None:
        return f"{name} ?"
    # Rounded down: 84.6 % shown as 85 % would deny what the level says.
    return f"{name} {int(record.usage_ratio * 100 + 1e-9)}% {field(record.threshold_status)}"


def _escaped(text: str) -> str:
    # tmux expands what a command printed once more.
    return text.replace("#", "##")


def _coloured(part: _Part) -> str:
    text = _escaped(part.text)
    return f"#[fg={part.colour}]{text}#[default]" if part.colour else text
