"""Tells an agent that works through command-line tools, on their stderr, how full its window is.

Loads the standard library and the core alone; `rich` when a box is drawn, and nothing when there
is nothing to say. What happens here never reaches the tool's exit code or its stdout.
"""

from ultramon.alerts.check import check_and_alert_context, check_context
from ultramon.alerts.config import AlertConfig
from ultramon.alerts.outcome import AlertOutcome
from ultramon.alerts.wrappers import alerting

__all__ = [
    "AlertConfig",
    "AlertOutcome",
    "alerting",
    "check_and_alert_context",
    "check_context",
]
