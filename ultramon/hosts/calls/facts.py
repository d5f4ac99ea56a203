"""The larger facts that hooks remember of an agent: its warning, its end, and what a person wrote.

Standard library only; loaded by the few calls that read or make one of them.
"""

from __future__ import annotations

from ultramon.state.stored_fields import StoredFields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    Kept = TypeVar("Kept", bound="KeptInEpoch")


class KeptInEpoch(StoredFields):
    """What counts in one filling of the window.

    Attributes:
        epoch: Which one.
    """

    epoch: int


def of_epoch(kept: Kept | None, epoch: int) -> Kept | None:
    """Return what is kept if it is of this epoch; None = what comes now is the first of it."""
    return kept if kept is not None and kept.epoch == epoch else None


class Warned(KeptInEpoch):
    """The last warning to the agent.

    Attributes:
        level: What the agent was warned of.
        silent_calls: Tool calls since.
        message_id: The reply whose calls it answered, or None.
        printer: The process that prints it; None = the host has it.
    """

    level: str
    silent_calls: int
    message_id: str | None
    printer: object


class Asked(KeptInEpoch):
    """Where returns are enforced: since when the agent knows that it is asked to return.

    Attributes:
        at: Epoch seconds.
        reply: The last reply since then, by its id or its time.
        replies: How many there were.
    """

    at: float | None
    reply: object
    replies: int


class WouldEnforce(StoredFields):
    """When a dry run would have ended the agent.

    Attributes:
        at: Epoch seconds.
        tokens: In its window then.
    """

    at: float | None
    tokens: int | None


class Enforced(WouldEnforce):
    """When the agent was ended because it continued; see `ultramon.hosts.calls.enforcement`.

    Attributes:
        checkpoint: The commit and the ref that keep its working tree, or None.
        problem: What was wrong with that, empty for nothing.
        printer: The process that answers with it; None = the host has it.
    """

    checkpoint: str | None
    problem: str
    printer: object


class LastPrompt(StoredFields):
    """What a person wrote last.

    Attributes:
        text: Its beginning.
        chars: Its length before it was cut, or None.
    """

    text: str
    chars: int | None


class LeftTasks(StoredFields):
    """What was open in the plan of a subagent when it ended.

    Attributes:
        count: How many.
        names: Of the first of them.
    """

    count: int
    names: Sequence[str]
