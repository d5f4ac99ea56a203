"""The results of the tools. No value is null: an unknown one is the word ``unknown``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Unknown = Literal["unknown"]
UNKNOWN: Unknown = "unknown"

Count = Annotated[int, Field(ge=0)]


class Answer(BaseModel):
    """Base of the answers."""

    model_config = ConfigDict(frozen=True)


class Task(Answer):
    """One task of a plan."""

    name: str
    status: str = Field(description="pending, in_progress, done or interrupted (may be half done)")
    result: str = Field("", description="Where its result is, e.g. a path; empty without one")


class ContextStatus(Answer):
    """How full one agent's context window is."""

    agent_id: str
    label: str = Field(description="The name a person knows it by; empty without one")
    summary: str = Field(description="The facts in a few sentences")
    used_percent: float | Unknown = Field(
        description="Of the limit, 0.0 and more; above 100 the limit is passed"
    )
    tokens: Count | Unknown = Field(description="In the window at the last reading")
    more_tokens_possible: bool = Field(
        description="True after a compaction of unknown size: the tokens are the least there are"
    )
    tokens_source: str = Field(
        description="reported (by the provider), anchored (a report plus an estimate of what came "
        "since) or estimated"
    )
    limit_tokens: Count | Unknown = Field(
        description="After so many tokens the agent cannot continue unharmed"
    )
    limit_source: str = Field(description="explicit, host, observed, model, default or unknown")
    tokens_left: int | Unknown = Field(description="Before the limit; negative beyond it")
    level: str = Field(description="normal, warning, critical, or a level of the user's own")
    action: str = Field(
        description="none, prepare_handoff (finish the current task, prepare a handoff) or "
        "force_return (hand off and return now)"
    )
    next_level: str = Field(description="The level ahead; empty at the highest one")
    turns_to_next_level: Count | Unknown = Field(description="The middle of a range")
    turns_to_next_level_low: Count | Unknown = Field(description="Its low end")
    turns_to_next_level_high: Count | Unknown = Field(
        description="Its high end; unknown where measurements bear none out"
    )
    reading_age_seconds: float | Unknown = Field(description="How old the reading is")
    lifecycle: str = Field(description="alive, stale, lost, or how the agent ended")
    current_task: str = Field(description="Empty without one")
    tasks_completed: Count
    tasks_total: Count | Unknown


class Fitting(Answer):
    """Whether something fits into the window."""

    verdict: Literal["fits", "too_large", "unknown"]
    reason: str
    needed_tokens: Count
    needed_tokens_are_estimated: bool
    tokens_after: Count | Unknown
    level_after: str = Field(description="The level with it in the window, or unknown")
    limit_tokens: Count | Unknown
    tokens_over: Count | Unknown = Field(description="Tokens beyond the limit; 0 within it")


class Plan(Answer):
    """The plan of the calling agent."""

    agent_id: str
    tasks: list[Task]
    tasks_completed: Count
    tasks_total: Count
    current_task: str = Field(description="The task in progress; empty without one")
    unnamed_tasks: Count = Field(description="Tasks that are counted and whose names are not kept")


class HandedOff(Answer):
    """The handoff that was stored."""

    handoff_id: str
    agent_id: str
    reason: str
    completed: list[str]
    interrupted: list[str] = Field(description="May be half done")
    remaining: list[str]
    next: str = Field(description="What happens now")
