"""Adapters for agent frameworks, one file each; nothing here is loaded until it is used.

They read what a framework's model calls used, and leave its requests, its history and its errors
as they are but where a user asks for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultramon.monitor.monitor import ContextMonitor


def current_monitor() -> ContextMonitor | None:
    """Return the monitor of the agent whose tool is running; None outside a watched agent's tool.

    For tools that work through the agent's plan, e.g. ``current_monitor().complete_task("a.py")``.
    """
    from ultramon.integrations.adapter import current_agent

    agent = current_agent()
    return None if agent is None else agent.monitor
