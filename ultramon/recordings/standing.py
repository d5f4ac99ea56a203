"""What the windows of one transcript hold beside the conversation: how much, in how many requests.

A part costs what it has in every request, not once: so tokens are summed over requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.tracker import OTHER
from ultramon.hosts.transcripts.mcp_names import server_of
from ultramon.hosts.transcripts.records import HOOKS, MCP, MEMORY, ULTRAMON
from ultramon.hosts.transcripts.records import STANDING_SOURCES as SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LATER = (ULTRAMON, HOOKS)
"""Sources of what comes in the middle of a conversation: it is no part of its first request."""
FIRST = "first"
"""In place of a source: all that the first request held before a person's first word."""
MAX_PARTS = 64
"""Sources of one transcript that are kept apart; what is beyond them counts as `OTHER`."""
SKILL_TOOL = "Skill"
"""That loads one of the skills that are listed."""
_MAX_NAME_CHARS = 400
# A count of the provider that is further above the estimate says that texts are missing.
_MOST_SCALE = 1.7


def shows_use(tool: str) -> bool:
    """Return whether a call of a tool shows that something is used which stands in requests."""
    return tool == SKILL_TOOL or server_of(tool) is not None


def is_standing(source: str) -> bool:
    """Return whether a source is beside the conversation."""
    return source in SOURCES or source.startswith((MCP, MEMORY))


def add_tokens(counts: dict[str, float], name: str, tokens: float, most: int) -> None:
    """Add tokens to a name; beyond so many names to `OTHER`."""
    name = name[:_MAX_NAME_CHARS]
    if name not in counts and len(counts) >= most:
        name = OTHER
    counts[name] = counts.get(name, 0) + tokens


class StandingPart(NamedTuple):
    """What one source had in the windows of one transcript.

    Attributes:
        request_tokens: Its tokens, summed over the requests that held it.
        requests: How many these were.
        is_measured: Whether its text and all others of a request are recorded, so that the
            provider's count was shared out; else its tokens are estimated.
    """

    request_tokens: float
    requests: int
    is_measured: bool


class StandingSums:
    """Sums of one transcript.

    Args:
        sums: Of the requests so far, continued in place: JSON of `StandingPart` by source.
        memory: Of sums that were made with the records before.
    """

    def __init__(self, sums: dict[str, list[Any]], memory: Mapping[str, Any] | None = None) -> None:
        self._sums = sums
        self._beside: dict[str, float] = {}
        """Tokens of what is no message: it outlives a compaction."""
        self._said: dict[str, float] = {}
        """Tokens of what stands among the messages of the present window."""
        self._rewound: list[str] = []
        """Sources of these from before a rewind: a text that comes again takes their place."""
        self._is_whole = self._is_begun = False
        self._scale: float | None = None
        self._since: dict[str, int] = {}
        self._requests = 0
        if memory is not None:
            self._beside, self._said = memory["beside"], memory["said"]
            self._is_whole, self._scale = memory["isWhole"], memory["scale"]
            self._is_begun, self._rewound = memory["isBegun"], memory["rewound"]
            self._since, self._requests = memory["since"], memory["requests"]

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "beside": self._beside,
            "said": self._said,
            "rewound": self._rewound,
            "isWhole": self._is_whole,
            "isBegun": self._is_begun,
            "scale": self._scale,
            "since": self._since,
            "requests": self._requests,
        }

    @property
    def beside(self) -> Mapping[str, float]:
        """Estimated tokens of what is no message, by source."""
        return self._beside

    @property
    def scale(self) -> float | None:
        """Of the provider's count to these estimates; None where not all texts are recorded."""
        return self._scale

    def replace(self, parts: Iterable[tuple[str, float]], *, is_whole: bool) -> None:
        """Take what each request holds beside its messages from here on."""
        found: dict[str, float] = {}
        for source, tokens in parts:
            add_tokens(found, source, tokens, MAX_PARTS)
        for source in {*found, *self._beside}:
            if found.get(source) != self._beside.get(source):
                self._settle(source)
        self._beside, self._is_whole = found, is_whole
        self._forget()

    def say(self, source: str, tokens: float) -> None:
        """Take a text that came among the messages."""
        source = source[:_MAX_NAME_CHARS]
        if source not in self._said and len(self._said) >= MAX_PARTS:
            source = OTHER
        self._settle(source)
        if source in self._rewound:
            self._rewound.remove(source)
            del self._said[source]
        add_tokens(self._said, source, tokens, MAX_PARTS)

    @property
    def is_begun(self) -> bool:
        """Whether the first request is known."""
        return self._is_begun

    def begin(self, tokens: int, said: float, user: float) -> None:
        """Take the first request of the conversation; any later one changes nothing.

        Args:
            tokens: As the provider counts it.
            said: Estimated tokens of all its messages.
            user: Of these, what a person wrote.
        """
        if self._is_begun:
            return
        self._is_begun = True
        whole = said + sum(self._beside.values())
        scale = tokens / whole if self._is_whole and whole else 0.0
        self._scale = scale if 0.0 < scale <= _MOST_SCALE else None
        first = max(0.0, tokens - user * (self._scale or 1.0))
        self._sums[FIRST] = [first, 1, True]

    def count(self) -> None:
        """Take one more request."""
        self._requests += 1

    def close_window(self, *, is_rewound: bool = False) -> None:
        """Let the messages be gone, as after a compaction.

        Args:
            is_rewound: Whether a person took back the last ones: what came with the first ones
                stays.
        """
        for source in self._said:
            self._settle(source)
        kept = [source for source in self._said if source not in LATER] if is_rewound else []
        self._said, self._rewound = {source: self._said[source] for source in kept}, kept
        self._forget()

    def finish(self) -> None:
        """Add up what the last requests held."""
        for source in {*self._beside, *self._said}:
            self._settle(source)

    def _settle(self, source: str) -> None:
        """Add up the requests that held a source as it is now."""
        since = self._since.get(source, 0)
        self._since[source] = self._requests
        tokens = self._beside.get(source, 0.0) + self._said.get(source, 0.0)
        requests = self._requests - since
        if tokens and requests:
            if source not in self._sums and len(self._sums) >= MAX_PARTS:
                source = OTHER
            row = self._sums.setdefault(source, [0.0, 0, self._scale is not None])
            row[0] += tokens * (self._scale or 1.0) * requests
            row[1] += requests

    def _forget(self) -> None:
        """Forget the sources that no window holds now: before one comes back it is settled."""
        held = {*self._beside, *self._said}
        self._since = {source: at for source, at in self._since.items() if source in held}
