"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "MiMo Code",
    "0.1, by its source",
    report="as Kilo; never run",
)
