"""What existing scripts send, under the names that they use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ultramon.server.http.responses import Whole

MAX_THRESHOLDS = 100


class Body(BaseModel):
    """Base of these bodies; members that are not named here are taken and not used."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ContextUsage(Body):
    """A sample of how full a window is, or a boundary."""

    session_id: str | None = None
    """The agent; the first of the three names that says something counts."""
    session_manager_id: str | None = None
    claude_session_manager_id: str | None = Field(None, alias="CLAUDE_SESSION_MANAGER_ID")
    event: str | None = None
    """None = a sample; ``compaction``, ``compaction_complete``, ``context_reset``, ``handoff``."""
    trigger: str | None = None
    """Why it was compacted; the same is told either way."""
    used_percentage: float | None = None
    """0 and more; None = the sender knows none."""
    total_input_tokens: Whole | None = None
    rate_limits: Any = None
    """Taken and not kept: limits of an account are no reading of a window."""
    sm_hook_emitted_at: str | float | None = None
    """When the sender took it, by its own clock: RFC 3339 or epoch seconds."""
    last_handoff_path: str | None = None
    """With ``handoff``: where the sender keeps its handoff document; None = nowhere any more."""

    @property
    def agent_id(self) -> str | None:
        """The agent that it is about."""
        names = (self.session_id, self.session_manager_id, self.claude_session_manager_id)
        return next((name for name in names if name), None)


class ContextMonitor(Body):
    """Whether somebody is told about an agent, who, and when."""

    enabled: bool
    notify_session_id: str | None = None
    """The recipient: the agent, an ancestor of it, or, for the admin, any agent. To enable, name
    one."""
    requester_session_id: str | None = None
    """Who asks. An agent's token says it already, and must say the same; the admin names one."""
    threshold_percentages: Annotated[list[float], Field(max_length=MAX_THRESHOLDS)] | None = None
    """Over 0 to 100, strictly rising; each is told once per filling of the window."""
    warning_percentage: float | None = None
    critical_percentage: float | None = None
    """The other way to say when; one that is missing is 70 or 85."""
    use_default_thresholds: bool = False
    """Forget those of one's own: the agent's own levels count."""


class InvalidateCache(Body):
    """In whose name an agent was cleared."""

    requester_session_id: str | None = None
    """An agent's token says it already, and must say the same; an admin may name nobody."""
