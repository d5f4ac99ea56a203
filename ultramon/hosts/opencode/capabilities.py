"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "opencode",
    "1.18.33",
    reading="always, in the next request",
    subagents="by their sessions",
    limit="as the host knows it, from the second request on",
    warned="in the next request itself",
    ended="`--enforce`, before a request",
    compaction="reported; text for the summary's instructions",
    tasks="`todowrite`, one for each agent",
    end="reported when the host ends",
    relay="without denied calls",
)
