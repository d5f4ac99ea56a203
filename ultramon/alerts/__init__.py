"""Alerts on stderr to agents that work through command-line tools: how full the window is.

Loads the standard library only, and `rich` to draw a box. Nothing here changes the tool's exit
code or its stdout.
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
