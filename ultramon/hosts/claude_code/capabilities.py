"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Claude Code",
    "2.1.330",
    reading="after up to 0.15 s of waiting near a threshold",
    subagents="by their ids",
    limit="model, status line, environment, settings",
    warned="with the next tool or prompt",
    ended="`--enforce`, after a tool",
    compaction="reported; text for the summary's instructions",
    tasks="shared with subagents",
    end="reported",
)
