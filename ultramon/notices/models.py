"""Registrations and notices as frozen models."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from ultramon.state.models import Model

if TYPE_CHECKING:
    from ultramon.notices.message import Message
    from ultramon.notices.registration import StoredRegistration


class Registration(Model):
    """One recipient's subscription to the notices about one agent."""

    agent_id: str
    notify_id: str
    """The recipient."""
    source: str
    """``explicit``, or ``parent``: the recipient follows when the agent's parent is another."""
    ladder: dict[str, Any] | None
    """The rungs that lead to notices; None = the agent's own."""
    ladder_status: str
    """``default``, ``custom``, or ``invalid``: what is stored is no ladder, and levels lead to no
    notice."""
    registered_by: str
    """The agent that asked, or ``admin``."""
    registered_at: datetime

    @classmethod
    def of(cls, stored: StoredRegistration) -> Registration:
        """Return a stored registration as a model."""
        return cls.model_validate(stored, from_attributes=True)

    @property
    def is_enforced(self) -> bool:
        """Whether levels lead to notices."""
        return self.ladder_status != "invalid"


class Notice(Model):
    """A message to an agent, mostly about another one."""

    message_id: int
    """The same at every delivery."""
    recipient: str
    agent_id: str | None
    """The agent that it is about or comes from; None for a sender that gave no name."""
    category: str | None
    """``context_monitor``, ``handoff``, ``lifecycle``, or the sender's choice; None for free
    messages."""
    delivery: str
    """``urgent``, ``important`` or ``sequential``."""
    text: str
    facts: dict[str, Any]
    """What the text says, as typed values: ``kind`` is ``level``, ``epoch``, ``handoff``,
    ``ended``, ``lost``, ``expired`` or ``recovered``."""
    attempts: Annotated[int, Field(ge=0)]
    """How often it was claimed, this time included."""
    queued_at: datetime
    claim_token: str = Field("", repr=False, exclude=True)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return a message of the queue as a model, which takes the fields that it has."""
        return cls(message_id=message.id, agent_id=message.sender, **message._asdict())
