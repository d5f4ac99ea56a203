"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Kilo",
    "7.7.9",
    report="each reply with tokens, cost and model",
)
