"""The metrics: names, units, labels. Both exporters and docs/metrics.md follow this table."""

from __future__ import annotations

import re
from typing import NamedTuple

GAUGE = "gauge"
COUNTER = "counter"

UNKNOWN = "unknown"
"""The value of a label that is not known."""
OTHER = "other"
"""The value of a label whose text is not a plain name, or an outcome of a newer ultramon."""

# Without blanks and of 128 characters at most: a sentence that an agent wrote is no label.
_PLAIN = re.compile(r"[A-Za-z0-9~@][A-Za-z0-9._:/@+\[\]~-]{0,127}", re.ASCII)

_PATH = re.compile(r"[~/][A-Za-z0-9._:/@+~-]{0,255}", re.ASCII)


class Metric(NamedTuple):
    """One metric."""

    name: str
    """For Prometheus; that of a counter without ``_total``."""
    otel_name: str
    kind: str
    unit: str
    """By the UCUM, as OpenTelemetry has it."""
    labels: tuple[str, ...]
    help: str

    @property
    def shown_name(self) -> str:
        """The name in an expression of Prometheus."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


CONTEXT_TOKENS = Metric(
    "ultramon_context_tokens",
    "ultramon.context.usage",
    GAUGE,
    "{token}",
    ("agent_id", "run", "host", "model"),
    "Tokens in the context window at the last reading.",
)
CONTEXT_LIMIT = Metric(
    "ultramon_context_limit_tokens",
    "ultramon.context.limit",
    GAUGE,
    "{token}",
    ("agent_id", "run", "limit_source"),
    "Tokens after which the agent cannot continue unharmed.",
)
USAGE_RATIO = Metric(
    "ultramon_context_usage_ratio",
    "ultramon.context.utilization",
    GAUGE,
    "1",
    ("agent_id", "run", "host"),
    "Tokens by limit, not clamped; absent while one of them is unknown.",
)
READING_AGE = Metric(
    "ultramon_reading_age_seconds",
    "ultramon.reading.age",
    GAUGE,
    "s",
    ("agent_id", "run"),
    "Time since the last reading.",
)
HEARTBEAT_AGE = Metric(
    "ultramon_heartbeat_age_seconds",
    "ultramon.heartbeat.age",
    GAUGE,
    "s",
    ("agent_id", "run"),
    "Time since the last heartbeat; absent for an agent that has none.",
)
TURNS_TO_LEVEL = Metric(
    "ultramon_turns_to_level",
    "ultramon.context.turns_to_level",
    GAUGE,
    "{turn}",
    ("agent_id", "run", "level"),
    "Forecast turns that still end below a level, the middle; 0 = reached.",
)
TURNS_TO_LEVEL_LOW = Metric(
    "ultramon_turns_to_level_low",
    "ultramon.context.turns_to_level.low",
    GAUGE,
    "{turn}",
    ("agent_id", "run", "level"),
    "Low end of the forecast turns.",
)
TURNS_TO_LEVEL_HIGH = Metric(
    "ultramon_turns_to_level_high",
    "ultramon.context.turns_to_level.high",
    GAUGE,
    "{turn}",
    ("agent_id", "run", "level"),
    "High end of the forecast turns; absent where measurements give none.",
)
AGENT_MACHINE = Metric(
    "ultramon_agent_machine",
    "ultramon.agent.machine",
    GAUGE,
    "1",
    ("agent_id", "run", "machine"),
    "Always 1: the machine of an agent; absent where all agents are on one.",
)
MACHINE_AGE = Metric(
    "ultramon_machine_age_seconds",
    "ultramon.machine.age",
    GAUGE,
    "s",
    ("machine",),
    "Time since a machine that mirrors its agents into the database was last heard of.",
)
AGENTS = Metric(
    "ultramon_agents",
    "ultramon.agents",
    GAUGE,
    "{agent}",
    ("run", "host", "level", "lifecycle"),
    "Stored agents.",
)
AGENTS_NOT_SHOWN = Metric(
    "ultramon_agents_not_shown",
    "ultramon.agents.not_shown",
    GAUGE,
    "{agent}",
    (),
    "Active agents beyond the limit, which have no series of their own.",
)
CROSSINGS = Metric(
    "ultramon_threshold_crossings",
    "ultramon.context.threshold.crossings",
    COUNTER,
    "{crossing}",
    ("run", "host", "level"),
    "Upward crossings of a level.",
)
COMPACTIONS = Metric(
    "ultramon_compactions",
    "ultramon.context.compactions",
    COUNTER,
    "{compaction}",
    ("run", "host"),
    "Context windows that were compacted.",
)
HANDOFFS = Metric(
    "ultramon_handoffs",
    "ultramon.handoffs",
    COUNTER,
    "{handoff}",
    ("run", "host", "outcome"),
    "Handoffs: written by the agent, rebuilt after its death, or offered again.",
)
AGENTS_ENDED = Metric(
    "ultramon_agents_ended",
    "ultramon.agents.ended",
    COUNTER,
    "{agent}",
    ("run", "host", "outcome"),
    "Ends of agents, and requests to return whose grace ran out (expired).",
)
NOTICES_WAITING = Metric(
    "ultramon_notices_waiting",
    "ultramon.notices.waiting",
    GAUGE,
    "{notice}",
    ("run",),
    "Notices and messages that may still be delivered, by the run of their recipient.",
)
NOTICES_OLDEST_AGE = Metric(
    "ultramon_notices_oldest_age_seconds",
    "ultramon.notices.oldest_age",
    GAUGE,
    "s",
    ("run",),
    "Age of the oldest notice or message that waits.",
)

PLAN_USED_RATIO = Metric(
    "ultramon_plan_used_ratio",
    "ultramon.plan.utilization",
    GAUGE,
    "1",
    ("account", "host", "limit"),
    "Used share of a limit of the user's plan, not clamped; absent after its reset.",
)
PLAN_RESET = Metric(
    "ultramon_plan_reset_timestamp_seconds",
    "ultramon.plan.reset",
    GAUGE,
    "s",
    ("account", "host", "limit"),
    "When a limit of the plan resets, seconds since 1970.",
)
PLAN_READING_AGE = Metric(
    "ultramon_plan_reading_age_seconds",
    "ultramon.plan.reading.age",
    GAUGE,
    "s",
    ("account", "host", "limit"),
    "Time since the provider said how much of the limit is used.",
)
BUDGET_USED_RATIO = Metric(
    "ultramon_budget_used_ratio",
    "ultramon.budget.utilization",
    GAUGE,
    "1",
    ("budget",),
    "Spent share of a budget in its present period, not clamped; absent while no process looks.",
)
BUDGET_SPENT_USD = Metric(
    "ultramon_budget_spent_usd",
    "ultramon.budget.spent.usd",
    GAUGE,
    "{USD}",
    ("budget",),
    "US dollars spent of a budget in dollars: the priced part.",
)
BUDGET_LIMIT_USD = Metric(
    "ultramon_budget_limit_usd",
    "ultramon.budget.limit.usd",
    GAUGE,
    "{USD}",
    ("budget",),
    "Limit of a budget in US dollars.",
)
BUDGET_SPENT_TOKENS = Metric(
    "ultramon_budget_spent_tokens",
    "ultramon.budget.spent.tokens",
    GAUGE,
    "{token}",
    ("budget",),
    "Tokens spent of a budget in tokens.",
)
BUDGET_LIMIT_TOKENS = Metric(
    "ultramon_budget_limit_tokens",
    "ultramon.budget.limit.tokens",
    GAUGE,
    "{token}",
    ("budget",),
    "Limit of a budget in tokens.",
)
BUDGET_CROSSINGS = Metric(
    "ultramon_budget_threshold_crossings",
    "ultramon.budget.threshold.crossings",
    COUNTER,
    "{crossing}",
    ("budget", "level"),
    "Levels that budgets have reached, once per budget and period.",
)
PLAN_CROSSINGS = Metric(
    "ultramon_plan_threshold_crossings",
    "ultramon.plan.threshold.crossings",
    COUNTER,
    "{crossing}",
    ("account", "host", "limit", "level"),
    "Levels that limits of the plan have reached, once per account and period.",
)

METRICS = (
    CONTEXT_TOKENS,
    CONTEXT_LIMIT,
    USAGE_RATIO,
    READING_AGE,
    HEARTBEAT_AGE,
    TURNS_TO_LEVEL,
    TURNS_TO_LEVEL_LOW,
    TURNS_TO_LEVEL_HIGH,
    AGENT_MACHINE,
    MACHINE_AGE,
    AGENTS,
    AGENTS_NOT_SHOWN,
    CROSSINGS,
    COMPACTIONS,
    HANDOFFS,
    AGENTS_ENDED,
    NOTICES_WAITING,
    NOTICES_OLDEST_AGE,
    PLAN_USED_RATIO,
    PLAN_RESET,
    PLAN_READING_AGE,
    PLAN_CROSSINGS,
    BUDGET_USED_RATIO,
    BUDGET_SPENT_USD,
    BUDGET_LIMIT_USD,
    BUDGET_SPENT_TOKENS,
    BUDGET_LIMIT_TOKENS,
    BUDGET_CROSSINGS,
)

ATTRIBUTES = {
    "agent_id": "gen_ai.agent.id",
    "model": "gen_ai.request.model",
    **{
        name: f"ultramon.{name}"
        for name in (
            "run",
            "host",
            "level",
            "lifecycle",
            "limit_source",
            "outcome",
            "account",
            "limit",
            "budget",
            "machine",
        )
    },
}
"""The OpenTelemetry attribute of each label.

The semantic conventions for generative AI name agents and models, but no size or use of a window.
Their constants are deprecated and moving, so that the names are written here.
"""

Samples = dict[Metric, dict[tuple[str, ...], float]]
"""By metric the value for each combination of its labels, in their order."""


def plain(text: str | None) -> str:
    """Return a label's value: a name as it is, `OTHER` for any other text, `UNKNOWN` for none."""
    if not text:
        return UNKNOWN
    return text if _PLAIN.fullmatch(text) else OTHER


def plain_path(path: str) -> str:
    """Return the value of a label for a directory of the user: as `plain`, of a path."""
    return path if _PATH.fullmatch(path) else OTHER
