"""The rule book of notices: who may register which recipient, and which levels lead to a notice.

Standard library only, and no I/O: hooks, monitors and servers apply the same rules.
"""

from __future__ import annotations

from ultramon.context.gauge import is_lower_bound
from ultramon.context.ladder import Ladder, next_level
from ultramon.errors import (
    AgentNotFoundError,
    NotPermittedError,
    RegistrationError,
)
from ultramon.state.usage_percent import usage_ratio
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ultramon.context.ladder import ResolvedLadder
    from ultramon.state.record import StateRecord

EXPLICIT = "explicit"
PARENT = "parent"
"""Sources of a recipient; one derived from the parent follows when the parent is another."""
MAX_ANCESTORS = 16
"""How many generations up a recipient may be: deeper than any known orchestration."""
DEFAULT = "default"
CUSTOM = "custom"
INVALID = "invalid"
MAX_KNOWN = 64
"""Ladders that a process remembers; many agents share one."""
_known: dict[tuple[str, int | None], tuple[Ladder, ResolvedLadder]] = {}


def check_permission(record: StateRecord, requester: str, *what: str) -> None:
    """Make sure that a requester may decide about an agent; `what`, for the error.

    Raises:
        NotPermittedError: It is neither the agent nor its direct parent.
    """
    if requester not in (record.agent_id, record.parent_id):
        raise NotPermittedError(record.agent_id, requester, *what)


def resolve_target(
    record: StateRecord | None,
    agent_id: str,
    requester: str | None,
    notify: str | None,
    *,
    parent_of: Callable[[str], str | None],
    is_over: bool,
    as_admin: bool = False,
) -> tuple[str, str]:
    """Check a registration: agent, recipient named, permission, recipient, gauge, in this order.

    Args:
        record: The agent as it is stored; None when it is not.
        agent_id: Its id.
        requester: The agent that asks, an existing one; None = a person, who may do everything but
            has to name a recipient.
        notify: The recipient; None = the requester. An empty name is none.
        parent_of: Returns the stored parent of an agent, or None; raises `AgentNotFoundError`.
        is_over: Whether the agent has ended or was lost.
        as_admin: Whether any agent may be the recipient.

    Returns:
        The recipient and its source, `EXPLICIT` or `PARENT`.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        RegistrationError: The recipient is missing, unknown, or neither the requester nor the
            agent nor one of its ancestors; the ancestors form a cycle; or the agent can never be
            measured again.
    """
    if record is None:
        raise AgentNotFoundError(agent_id)
    target = requester if notify is None else notify
    if not target:
        raise RegistrationError(agent_id, "notify_missing")
    if requester is not None:
        check_permission(record, requester)
    if target != requester:
        anybody = as_admin or requester is None
        check_recipient(agent_id, record.parent_id, target, parent_of=parent_of, anybody=anybody)
    if is_over:
        raise RegistrationError(agent_id, "stopped")
    if record.extra.get("gauge") == "none":
        raise RegistrationError(agent_id, "no_gauge")
    is_derived = notify is None and requester == record.parent_id and requester != agent_id
    return target, PARENT if is_derived else EXPLICIT


def check_recipient(
    agent_id: str,
    parent_id: str | None,
    target: str,
    *,
    parent_of: Callable[[str], str | None],
    anybody: bool,
) -> None:
    """Make sure that an agent may receive notices that it did not ask for.

    Args:
        agent_id: The agent that the notices are about.
        parent_id: Its parent.
        target: The recipient.
        parent_of: Returns the stored parent of an agent, or None; raises `AgentNotFoundError`.
        anybody: Whether any existing agent may be the recipient.

    Raises:
        RegistrationError: It does not exist, or is neither the agent nor one of its ancestors; or
            these form a cycle.
    """
    try:
        parent_of(target)
    except AgentNotFoundError:
        raise RegistrationError(agent_id, "notify_unknown") from None
    if anybody or target == agent_id:
        return
    passed, ancestor = {agent_id}, parent_id
    while ancestor is not None and len(passed) <= MAX_ANCESTORS:
        if ancestor == target:
            return
        if ancestor in passed:
            raise RegistrationError(agent_id, "notify_cycle")
        passed.add(ancestor)
        try:
            ancestor = parent_of(ancestor)
        except AgentNotFoundError:
            break
    raise RegistrationError(agent_id, "notify_refused")


class Decision:
    """A level that is not the last one that a recipient was notified of.

    Attributes:
        level: The level now.
        action: What it asks of the agent.
        previous: The last announced level; without one the base of the ladder.
        is_rise: Whether the level is higher than the previous one: that leads to a notice.
    """

    __slots__ = ("action", "is_rise", "level", "previous")

    def __init__(self, level: str, action: str, previous: str, *, is_rise: bool) -> None:
        self.level = level
        self.action = action
        self.previous = previous
        self.is_rise = is_rise


def least_ratio(record: StateRecord) -> float | None:
    """Return the usage ratio, or what it is at least after a compaction of unknown size."""
    if record.context_limit and record.measured_at is not None and is_lower_bound(record):
        return record.estimated_tokens / record.context_limit
    return usage_ratio(record)


def decide(
    ladder: dict[str, Any] | None, record: StateRecord, announced: tuple[int, str] | None
) -> Decision | None:
    """Decide whether a state leads to a notice: each rung does once per epoch, or as it re-arms.

    Args:
        ladder: As in a state file; None = the agent's own.
        record: The state.
        announced: Epoch and level announced last; None without one. Another epoch's is ignored.

    Returns:
        None where the level is the announced one, without a reading, and where what is stored is
        no ladder. A lower bound only rises.
    """
    ratio = least_ratio(record)
    if ratio is None or record.measured_at is None:
        return None
    try:
        rungs, resolved = _resolved(
            record.ladder if ladder is None else ladder, record.context_limit
        )
    except (ValueError, TypeError):
        return None
    previous = rungs.base
    if announced is not None and announced[0] == record.epoch:
        previous = announced[1]
    level = next_level(previous, ratio, resolved)
    if level is None or level == previous:
        return None
    is_rise = resolved.rank(level) > resolved.rank(previous)
    if usage_ratio(record) is None and not is_rise:
        return None
    rung = rungs.rung(level)
    return Decision(level, rung.action if rung else "none", previous, is_rise=is_rise)


def _resolved(
    ladder: dict[str, Any] | None, context_limit_tokens: int | None
) -> tuple[Ladder, ResolvedLadder]:
    """Return a stored ladder, and what its rungs are at a limit.

    Every save of a registered agent asks: to check all rungs anew takes four times as long.

    Raises:
        ValueError: What is stored is no ladder.
        TypeError: It is no JSON either.
    """
    key = compact_json.dumps(ladder), context_limit_tokens
    known = _known.get(key)
    if known is None:
        rungs = Ladder.from_json(ladder)  # type: ignore[arg-type]
        known = rungs, rungs.resolve(context_limit_tokens)
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = known
    return known
