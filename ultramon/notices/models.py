"""Registrations and notices as frozen models."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ultramon.state.models import Model

if TYPE_CHECKING:
    import asyncio
    import subprocess

    Attachable = subprocess.Popen[Any] | asyncio.subprocess.Process | int


class Registration(Model):
    """That somebody is told about an agent."""

    agent_id: str
    notify_id: str
    """Who is told."""
    source: str
    """``explicit``, or ``parent``: it follows when the agent's parent is another."""
    ladder: dict[str, Any] | None
    """The rungs at which; None = the agent's own."""
    ladder_status: str
    """``default``, ``custom``, or ``invalid``: what is stored is no ladder, and nothing is told."""
    registered_by: str
    registered_at: datetime

    @property
    def is_enforced(self) -> bool:
        """Whether levels are told."""
        return self.ladder_status != "invalid"


class Notice(Model):
    """A message to an agent, mostly about another one."""

    message_id: int
    """The same at every delivery."""
    recipient: str
    agent_id: str | None
    """Whom it is about, or who sent it; None for a sender that gave no name."""
    category: str | None
    """``context_monitor``, ``handoff``, ``lifecycle``, or what the sender chose; None for free
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
