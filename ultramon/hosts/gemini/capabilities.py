"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Gemini CLI",
    "0.61.0",
    reading="always",
    subagents="by the files that they write; of several at once none is reminded",
    limit="model; from the second prompt on also where it compresses",
    warned="with the next tool or prompt",
    ended="`--enforce`, before a request",
    compaction="seen in the session file",
    tasks="`write_todos`, one for each agent",
    end="reported",
    relay="by installed hooks; without prices and ends by hooks",
)
