"""The bodies of the routes that existing scripts know, under their names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ultramon.server.http.responses import Whole

MAX_THRESHOLDS = 100


class Body(BaseModel):
    """Base of these bodies; unknown members are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ContextUsage(Body):
    """A reading of a context window, or a boundary."""

    session_id: str | None = None
    """The agent; the first of the three names that is not empty counts."""
    session_manager_id: str | None = None
    claude_session_manager_id: str | None = Field(None, alias="CLAUDE_SESSION_MANAGER_ID")
    event: str | None = None
    """None = a reading; ``compaction``, ``compaction_complete``, ``context_reset``, ``handoff``."""
    trigger: str | None = None
    """Why it was compacted; makes no difference."""
    used_percentage: float | None = None
    """0 and more; None = unknown."""
    total_input_tokens: Whole | None = None
    rate_limits: Any = None
    """Ignored: limits of an account are no reading of a window."""
    sm_hook_emitted_at: str | float | None = None
    """The time of the reading by the sender's clock: RFC 3339 or epoch seconds."""
    last_handoff_path: str | None = None
    """With ``handoff``: the path of the sender's handoff document; None = it was removed."""

    @property
    def agent_id(self) -> str | None:
        """The id of the agent."""
        names = (self.session_id, self.session_manager_id, self.claude_session_manager_id)
        return next((name for name in names if name), None)


class ContextMonitor(Body):
    """The registration of a recipient for the notices about an agent."""

    enabled: bool
    notify_session_id: str | None = None
    """The recipient: the agent, an ancestor of it, or, for the admin, any agent. Required to
    enable."""
    requester_session_id: str | None = None
    """The requester. Must match an agent's token; the admin names one."""
    threshold_percentages: Annotated[list[float], Field(max_length=MAX_THRESHOLDS)] | None = None
    """Over 0 to 100, strictly rising; each is notified once per epoch."""
    warning_percentage: float | None = None
    critical_percentage: float | None = None
    """Another form of thresholds; a missing one is 70 or 85."""
    use_default_thresholds: bool = False
    """Use the agent's own levels instead of registered thresholds."""


class InvalidateCache(Body):
    """The requester of a clear."""

    requester_session_id: str | None = None
    """Must match an agent's token; the admin may leave it out."""
