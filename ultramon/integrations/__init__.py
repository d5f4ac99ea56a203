"""Adapters for agent frameworks, one file each; nothing here is loaded until it is used.

They read what a framework's model calls used, and leave its requests, its history and its errors
as they are but where a user asks for more. Another distribution offers an adapter by an entry point
of the group ``ultramon.integrations``; `load` finds both kinds by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ultramon.monitor.monitor import ContextMonitor

GROUP = "ultramon.integrations"
"""Entry points of other distributions: the name is the adapter's, the object its class."""
_BUILT_IN = {
    "claude-agent-sdk": "claude_agent_sdk:ContextHooks",
    "google-adk": "google_adk:ContextPlugin",
    "langchain": "langchain:ContextMiddleware",
    "langchain-callbacks": "langchain_callbacks:ContextCallbackHandler",
    "litellm": "litellm:ContextLogger",
    "openai-agents": "openai_agents:ContextHooks",
    "provider-client": "provider_client:ContextReader",
    "pydantic-ai": "pydantic_ai:ContextCapability",
}


def load(name: str) -> Callable[..., Any]:
    """Return the adapter of a framework: ``load("pydantic-ai")`` is `ContextCapability`.

    It is called as every adapter, with a monitor or without one and with the keywords of
    `ultramon.integrations.adapter.Choices`. What it returns has the framework's own hooks, and
    the agents that it watches in ``adapter``.

    Args:
        name: One of `names`.

    Raises:
        ConfigurationError: There is none of that name, or it cannot be loaded; names those there
            are, or the distribution.
        MissingExtraError: The framework is not installed.
    """
    from importlib import import_module

    from ultramon.errors import ConfigurationError, UltramonError
    from ultramon.system.entry_points import find_entry_points, name_distribution

    # The table first: no other package can take over one of its names.
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        built_in: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), attribute)
        return built_in
    entry = find_entry_points(GROUP, _BUILT_IN).get(name)
    if entry is None:
        raise ConfigurationError("integration", name, f"one of {', '.join(names())}")
    problem = f"another integration: that of {name_distribution(entry)}"
    try:
        found = entry.load()
    # Its words say what to do, as where an extra is missing.
    except UltramonError:
        raise
    except Exception as error:
        problem += f" cannot be loaded ({type(error).__name__}: {error})"
        raise ConfigurationError("integration", name, problem) from error
    if not callable(found):
        problem += f" is of kind {type(found).__name__}, not a class"
        raise ConfigurationError("integration", name, problem)
    foreign: Callable[..., Any] = found
    return foreign


def names() -> list[str]:
    """Return the names of all adapters, without loading any."""
    from ultramon.system.entry_points import find_entry_points

    return sorted([*_BUILT_IN, *find_entry_points(GROUP, _BUILT_IN)])


def current_monitor() -> ContextMonitor | None:
    """Return the monitor of the agent whose tool is running; None outside a watched agent's tool.

    For tools that work through the agent's plan, e.g. ``current_monitor().complete_task("a.py")``.
    """
    from ultramon.integrations.adapter import current_agent

    agent = current_agent()
    return None if agent is None else agent.monitor
