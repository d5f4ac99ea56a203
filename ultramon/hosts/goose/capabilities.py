"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Goose",
    "schemas 1 to 17, by its source",
    report="each request from schema 15 on, before that the last one; never run",
)
