"""What the host can do: a row of the table in docs/hosts.md."""

from ultramon.hosts.port import Capabilities

CAPABILITIES = Capabilities(
    "Qwen Code",
    "0.24.4",
    reading="after up to 0.15 s of waiting near a threshold",
    subagents="by their ids; 0.15: begin and end only",
    limit="as the host writes it",
    warned="with the next tool or prompt",
    ended="`--enforce`, sessions only",
    compaction="reported; text for the summary's instructions",
    tasks="`todo_write`, one for each agent",
    end='reported on a terminal; `-p`: its last turn; `qwen "text"`: by its process and the'
    " host's record, 0.15: `lost`",
    relay="without prices",
)
