"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Kimi CLI 1.51.0, Kimi Code",
    "2.1.0",
    report="each reply with its tokens; Kimi CLI writes no model",
)
