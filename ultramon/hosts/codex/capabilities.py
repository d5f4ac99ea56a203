"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Codex",
    "0.169.0",
    lacks={
        "ended": "a hook that ends a turn is shown as such, and the model is asked all the same",
    },
    reading="always",
    subagents="by their ids",
    limit="as the host reports the window",
    warned="with the next tool or prompt",
    compaction="reported",
    tasks="`update_plan`, one for each agent",
    end="`codex exec`: reported; on a terminal the host's daemon lives on, and the agent waits",
    relay="without denied calls, prices and ends by hooks",
)
