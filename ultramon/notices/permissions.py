"""Who may register which recipient of notices.

Standard library only, and no I/O: hooks, monitors and servers apply the same rules.
"""

from __future__ import annotations

from ultramon.errors import (
    AgentNotFoundError,
    NotPermittedError,
    RegistrationError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.state.record import StateRecord

EXPLICIT = "explicit"
PARENT = "parent"
"""Sources of a recipient; one derived from the parent follows when the parent is another."""
MAX_ANCESTORS = 16
"""How many generations up a recipient may be: deeper than any known orchestration."""


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
        is_free = as_admin or requester is None
        check_recipient(agent_id, record.parent_id, target, parent_of=parent_of, is_free=is_free)
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
    is_free: bool,
) -> None:
    """Make sure that an agent may receive notices that it did not ask for.

    Args:
        agent_id: The agent that the notices are about.
        parent_id: Its parent.
        target: The recipient.
        parent_of: Returns the stored parent of an agent, or None; raises `AgentNotFoundError`.
        is_free: Whether any existing agent may be the recipient.

    Raises:
        RegistrationError: It does not exist, or is neither the agent nor one of its ancestors; or
            these form a cycle.
    """
    # A recipient must exist also where any agent may be one: a typing error would be silence.
    try:
        parent_of(target)
    except AgentNotFoundError:
        raise RegistrationError(agent_id, "notify_unknown") from None
    if is_free or target == agent_id:
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
