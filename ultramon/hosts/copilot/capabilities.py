"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Copilot CLI",
    "1.0.102",
    reading="after up to 0.15 s of waiting near a threshold",
    subagents="by their ids",
    limit="as the host states it with each request; the limit is where it begins to compact",
    warned="with the next tool or prompt",
    ended="`--enforce`, at calls that need a permission",
    compaction="seen when the summary is in place",
    tasks="`todos`, shared with subagents",
    end="reported",
    relay="without prices",
)
