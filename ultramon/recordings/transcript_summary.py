"""What one transcript adds up to: the facts that every face is made of."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

UNRECORDED = "unrecorded"
"""Tokens that the provider counted and no text of the recording explains: system prompt, tools."""
SUMMARY = "summary"
MEASURED, ESTIMATED, UNKNOWN = "measured", "estimated", "unknown"
"""How sure a number is: counted by the provider, or that count shared out over texts that are all
recorded; from a text or an image; what is left of that count."""


def provenance_of(source: str, tokens: float, measured: Mapping[str, float]) -> str:
    """Return how sure the tokens of a source are.

    Args:
        source: As in `TranscriptSummary.tokens_by_source`.
        tokens: Its tokens.
        measured: By source, how many of them the provider counted.
    """
    if source == UNRECORDED:
        return UNKNOWN
    # Sums of fractions carry noise.
    return MEASURED if measured.get(source, 0.0) + 0.5 >= tokens else ESTIMATED


class FilledWindow(NamedTuple):
    """What fills one context window.

    Attributes:
        by_source: Tokens by what brought them, as in `TranscriptSummary.tokens_by_source`.
        measured: Of these, what the provider itself counted.
        by_file: Of these, what calls that name a file brought, by path.
    """

    by_source: Mapping[str, float]
    measured: Mapping[str, float]
    by_file: Mapping[str, float]

    @property
    def provenance(self) -> dict[str, str]:
        """How sure the tokens of each source are."""
        return {
            source: provenance_of(source, tokens, self.measured)
            for source, tokens in self.by_source.items()
        }


@dataclass(slots=True)
class TranscriptSummary:
    """The facts of one transcript.

    Attributes:
        host: Name of the host that wrote it.
        session_id: The session; the file's name where no line says it.
        agent_id: The host's name for the subagent, None for a session itself.
        project: The directory in which the agent began, or None.
        model: The model of the last reply, or None.
        window_tokens: The window that the host states, or None.
        started_at: Epoch seconds of the first record with a time, or None.
        ended_at: Of the latest record, or None.
        reports: Replies whose tokens the provider counted.
        broken_lines: Lines that could not be read.
        peak_tokens: The highest single report, or None without one.
        last_tokens: In the window after the last reply, that reply included, or None.
        compactions: How often the window was emptied: as recorded, or as the reports show.
        discarded_tokens: From the last reply before a compaction to the first request behind it,
            of all compactions where both were reported. At least so many: text after that reply,
            and what was new in that request, are left out.
        unmeasured_compactions: Compactions that `discarded_tokens` leaves out.
        overflows: Requests refused because they were larger than the window.
        has_ended_in_overflow: Whether nothing came after such a refusal.
        plan_wait_seconds: From requests refused for a usage limit to the next replies, each at
            most five hours; without a reply behind it a refusal adds nothing.
        tokens_by_source: Tokens that entered the windows, estimated, by what brought them.
        measured_by_source: Of these, what the provider itself counted.
        tools: Of MCP servers and for skills, those that were called; the first 256 of them, where
            the sources above are fewer.
        tokens_by_file: Of these, what calls that name a file brought, by path.
        standing: What its requests held beside the conversation: JSON of
            `ultramon.recordings.standing.StandingPart` by source.
        returns: Whether subagents came back with a text, by the host's name for them; under the
            empty name whether this agent's last turn ended with one.
        keys: Of the replies and compactions, the first of them; see
            `ultramon.recordings.reply_keys`.
        copied: How many of these are copied from another transcript. What they say is counted
            there and not here, though the window begins with it.
        copied_from: The transcript that this one says to be copied from, or None.
        began_at: When it says to have begun, epoch seconds, or None.
        first_prompt: The beginning of the first prompt of its own, or None.
        points: The reported tokens, the highest of each stretch.
        compaction_points: Indices into `points` where a window was emptied.
        usage: What its requests cost in tokens: JSON of `ultramon.recordings.usage.UsagePart`,
            without what was copied.
        spending: The same requests by quarters of an hour, likewise; see
            `ultramon.recordings.spending`.
    """

    host: str
    session_id: str
    agent_id: str | None = None
    project: str | None = None
    model: str | None = None
    window_tokens: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    reports: int = 0
    broken_lines: int = 0
    peak_tokens: int | None = None
    last_tokens: int | None = None
    compactions: int = 0
    discarded_tokens: int = 0
    unmeasured_compactions: int = 0
    overflows: int = 0
    has_ended_in_overflow: bool = False
    plan_wait_seconds: float = 0.0
    tokens_by_source: dict[str, float] = field(default_factory=dict)
    measured_by_source: dict[str, float] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    tokens_by_file: dict[str, float] = field(default_factory=dict)
    standing: dict[str, list[Any]] = field(default_factory=dict)
    returns: dict[str, bool] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    copied: int = 0
    copied_from: str | None = None
    began_at: float | None = None
    first_prompt: str | None = None
    points: list[int] = field(default_factory=list)
    compaction_points: list[int] = field(default_factory=list)
    usage: list[list[Any]] = field(default_factory=list)
    spending: list[list[Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the facts by name; lists and mappings are those of the summary."""
        # `asdict` copies every number of every list: a quarter of the time of a first report.
        return {name: getattr(self, name) for name in _FIELD_NAMES}


_FIELD_NAMES = tuple(one.name for one in fields(TranscriptSummary))
