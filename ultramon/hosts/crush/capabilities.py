"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Crush",
    "to migration 20260127000000, by its source",
    report="the last request of each session; never run",
)
