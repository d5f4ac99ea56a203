"""How Acme has what its code does not show, and why it lacks the rest."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Acme",
    lacks={
        "ended": "nothing that a hook answers ends a turn",
        "tasks": "it keeps no list",
        "relay": "there is no launcher for it",
    },
    subagents="workers, by their names",
)
