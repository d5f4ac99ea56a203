"""The facts that the transcript reader of every host yields. Knows no host and reads nothing."""

from __future__ import annotations

from ultramon.context.token_counts import input_side, is_cache_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, dataclass_transform

    from ultramon.state.plan_limits import PlanLimit
else:

    def dataclass_transform() -> object:
        """Stand in for what only a type checker needs: `typing` would cost a hook time."""
        return lambda cls: cls


OVERFLOW = "Prompt is too long"
"""Error of a request that was larger than the window, whatever words the host has for it."""

UNSTATED_MODEL = "requests before the last are not stated"
"""In the place of a report's model where it is all that is known of what a session cost: it has no
price, so that the session is unpriced; the model that was asked for stands beside it."""

SYSTEM, TOOLS, SKILLS, AGENTS, ULTRAMON, HOOKS = (
    "system", "tools", "skills", "agents", "ultramon", "hooks",
)  # fmt: skip
"""Sources of what a window holds before the first word, or beside the conversation: the system
prompt, definitions of built-in tools, lists of skills and of agents, texts of ultramon's hooks and
of others."""
MCP, MEMORY = "mcp:", "memory:"
"""Beginnings of such sources: what an MCP server brings, by its name; a file of instructions, by
its path."""
THINKING, IMAGES = "thinking", "images"
"""Sources of what a model thought before it said something, and of images, with documents that are
shown as such."""
STANDING_SOURCES = (SYSTEM, TOOLS, SKILLS, AGENTS, ULTRAMON, HOOKS, MCP, MEMORY)


@dataclass_transform()
class Record:
    """One fact read from a transcript or a payload; equal when class and fields are.

    A subclass names its fields and their defaults as a dataclass does, which would cost a hook
    time to load.
    """

    if not TYPE_CHECKING:

        def __init__(self, *values: Any, **fields: Any) -> None:
            names = type(self).__annotations__
            fields.update(zip(names, values, strict=False))
            self.__dict__.update(fields)
            wrong = [one for one in {*names, *fields} if not (one in names and hasattr(self, one))]
            if wrong:
                raise TypeError(f"a {type(self).__name__} lacks, or does not know, {sorted(wrong)}")

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in type(self).__annotations__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._fields() == self._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__)
        return f"{type(self).__name__}({', '.join(fields)})"


class Content(Record):
    """Text that entered the context window.

    Attributes:
        text: The text, never empty but for hidden thinking; may hold lone surrogates, as JSON
            allows.
        source: ``user``, ``assistant``, ``summary``, ``developer``, ``instructions``,
            ``tool:<name>``, ``attachment:<type>``, `THINKING`, or one of `STANDING_SOURCES`.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
        counted: True when the numbers of a Report or Boundary beside it include this text, so
            that estimating it as well would count it twice.
        file: The file that a tool call named and whose result this is, or None.
        by_host: Whether the host wrote it in the place of a person, as far as its line says so.
    """

    text: str
    source: str
    at: float | None
    counted: bool = False
    file: str | None = None
    by_host: bool = False


class Image(Record):
    """An image that entered the context window, or a document that is shown as such.

    Attributes:
        data: The beginning of its bytes, as base64; empty = a document, or the line holds none.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
        detail: How closely the model looks at it, as OpenAI names that; None = not stated.
        file: The file that a tool call named and whose result this is, or None.
        tool: The tool whose result it is a part of, as far as the host says it, or None.
    """

    data: str
    at: float | None
    detail: str | None = None
    file: str | None = None
    tool: str | None = None


class Standing(Record):
    """What every request holds beside its messages; takes the place of what an earlier one said.

    Attributes:
        parts: Texts, each with its source, one of `STANDING_SOURCES`.
        is_whole: Whether there is no more of it, as with Codex, whose tools are not written down.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    parts: Sequence[tuple[str, str]]
    is_whole: bool
    at: float | None


class Report(Record):
    """What the provider counted for one response.

    Attributes:
        message_id: The response, or None when the host does not name it.
        model: The model that answered.
        requested_model: The model as asked for, with a window suffix such as ``[1m]``.
        input_tokens: The input, including both caches only if `cache_in_input`.
        cache_read_tokens: Input read from the cache.
        cache_creation_tokens: Input written to the cache.
        output_tokens: The reply, in the window from the next request on.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
        update: True when this corrects the numbers of the previous Report, which has the same
            `message_id`; text read between the two came after the response and still counts.
        cache_in_input: Which of the two ways of counting the provider uses.
        billed: What the response cost in tokens, where that is not what the counts above say: the
            fields of `ultramon.context.token_usage.TokenUsage` in their order. None = as counted.
        speed: How the provider served it, as it names that; None = the usual way.
        cost_usd: What the host says that it cost in US dollars; None = it does not say.
        thinking_tokens: Of the output, what the model thought; None = not stated.
        copied_id: What names the response in its copies too; None = `message_id` does.
    """

    message_id: str | None
    model: str | None
    requested_model: str | None
    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    at: float | None = None
    update: bool = False
    cache_in_input: bool = False
    billed: tuple[int, ...] | None = None
    speed: str | None = None
    cost_usd: float | None = None
    thinking_tokens: int | None = None
    copied_id: str | None = None

    def find_cache(self, total_tokens: int | None) -> None:
        """Decide how the cache is counted of a provider that usually counts it as input.

        Args:
            total_tokens: Of request and reply as stated; None = not stated.
        """
        self.cache_in_input = is_cache_inside(
            self.input_tokens,
            self.cache_read_tokens + self.cache_creation_tokens,
            self.output_tokens,
            total_tokens or 0,
            usual=True,
        )

    def find_thoughts(self, thought_tokens: int, total_tokens: int | None) -> None:
        """Decide whether the output holds the thoughts, as the total shows.

        Those that it leaves out are billed as output and are not in the next request.

        Args:
            thought_tokens: As stated, 0 or more.
            total_tokens: Of request and reply as stated; None = not stated.
        """
        output = self.output_tokens + thought_tokens
        if thought_tokens and (total_tokens or 0) >= self.tokens + output:
            self.billed = (*self.billed_tokens[:4], output)
            self.thinking_tokens = 0
        elif thought_tokens:
            self.thinking_tokens = thought_tokens

    @property
    def billed_tokens(self) -> tuple[int, ...]:
        """What the response cost: the fields of `ultramon.context.token_usage.TokenUsage`."""
        if self.billed is not None:
            return self.billed
        read, created = self.cache_read_tokens, self.cache_creation_tokens
        return self.tokens - read - created, read, created, 0, self.output_tokens

    @property
    def tokens(self) -> int:
        """Tokens in the window when the request was made: new and cached input, no output."""
        return input_side(
            self.input_tokens,
            self.cache_read_tokens + self.cache_creation_tokens,
            cache_in_input=self.cache_in_input,
        )


class Billed(Record):
    """A request that cost tokens and says nothing of the present window.

    Attributes:
        model: The model that answered.
        billed_tokens: As in `Report`.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
        is_summary: Whether it wrote the summary of a compaction.
        speed: As in `Report`.
    """

    model: str | None
    billed_tokens: tuple[int, ...]
    at: float | None = None
    is_summary: bool = False
    speed: str | None = None


class LimitReached(Record):
    """A request was refused because a usage limit was reached, of a plan or of a provider.

    Attributes:
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    at: float | None


class Boundary(Record):
    """A compaction: what was read before describes a window that no longer exists.

    Attributes:
        trigger: ``auto`` or ``manual``, or None when the host does not say.
        post_tokens: The host's estimate of the tokens after, or None.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    trigger: str | None
    post_tokens: int | None
    at: float | None


class Rewind(Record):
    """A person took back what was said last: the conversation continues from an earlier point.

    Nothing is thrown away by it, and it is no compaction, though the next report may be lower.

    Attributes:
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    at: float | None


class Overflow(Record):
    """The provider refused a request because it was larger than the context window.

    Attributes:
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    at: float | None


class Returned(Record):
    """A subagent gave its result to its launcher; a resumed one does so again.

    Attributes:
        agent_id: The host's name for the subagent; None = the agent whose transcript this is.
        has_text: Whether the launcher gets a text.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    agent_id: str | None
    has_text: bool
    at: float | None


class Window(Record):
    """The context window the host works with: at its first mention and whenever it changes.

    Attributes:
        tokens: The window, at least 1.
        at: Seconds since 1970 (UTC), or None when the line has no readable time.
    """

    tokens: int
    at: float | None


class Broken(Record):
    """A line that could not be read; the lines around it were.

    Attributes:
        line_number: Counted from 1.
        reason: What is wrong, in words, without any of the line's text.
        line_bytes: How long the line is, as far as it was read.
    """

    line_number: int
    reason: str
    line_bytes: int


class TranscriptIdentity(Record):
    """Whose transcript a file is.

    Attributes:
        session_id: The session of the host.
        agent_id: The host's name for the subagent, None for the main agent.
        model: The model as asked for, with a window suffix such as ``[1m]``, if said.
        project: The working directory in which the agent began, if said.
        copied_from: The session or subagent whose lines it may begin with, if said.
        began_at: When it began itself, epoch seconds, if said.
    """

    session_id: str
    agent_id: str | None = None
    model: str | None = None
    project: str | None = None
    copied_from: str | None = None
    began_at: float | None = None

    @property
    def qualified_id(self) -> str:
        """``<session_id>`` or ``<session_id>.<agent_id>``; not checked to be an allowed id."""
        return qualified_id(self.session_id, self.agent_id)


def qualified_id(session_id: str, agent_id: str | None) -> str:
    """Return the id of an agent: of a session itself its own, of a subagent both."""
    return session_id if agent_id is None else f"{session_id}.{agent_id}"


class SessionEnd(Record):
    """How a session ended whose host process is gone.

    Attributes:
        at: Epoch seconds.
        error: What its last turn failed with, `OVERFLOW` or the host's name for the kind; empty =
            it ended well.
        cuts_turn: Whether the host closed it in the middle of a turn.
    """

    at: float
    error: str = ""
    cuts_turn: bool = False


class LastReading:
    """What the end of a transcript says.

    Attributes:
        report: The provider's count for the last complete reply after the last compaction; None
            where there is none yet.
        is_current: Whether nothing newer can be missing: the reply holds the tool call that was
            asked for. True as well where the host cannot say.
        bytes_behind: What was written after that reply; all of it where there is no reply.
        text: The last text of that reply that was written down, empty when there is none yet.
        error: Why the request after that reply failed, `OVERFLOW` or the host's name for the
            kind; None when none did.
        error_status: Its HTTP status; None = no error, or the host does not say.
        stopped_at: When a person interrupted the agent after that reply, or the request after it
            failed, epoch seconds; None when neither did.
        stop_reason: What a hook said that ended the agent after that reply, maybe empty; None when
            none did.
        refused_above_tokens: The most that the provider takes, where it refused that request for
            its length and said so, or None.
        window_tokens: The window that the host reports beside its replies, or None.
        compaction_id: Names the compaction that the last reply or the one before it follows, where
            no event reports compactions; None = none is known.
        compacted_at: When that was, epoch seconds, or None.
        lacks_count: Whether a reply follows for which the host has written no numbers.
        has_given_up: Whether the search ended where neither a reply nor a compaction was found.
        plan_limits: What the host writes of the user's plan beside its counts; empty = nothing.
        file_id: Names the file on its disk; None = not read from one file.
        size_bytes: How long that was.
    """

    report: Report | None = None
    is_current = False
    bytes_behind = 0
    text = ""
    error: str | None = None
    error_status: int | None = None
    refused_above_tokens: int | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    window_tokens: int | None = None
    compaction_id: str | None = None
    compacted_at: float | None = None
    lacks_count = False
    has_given_up = False
    plan_limits: Sequence[PlanLimit] = ()
    file_id: int | None = None
    size_bytes = 0

    @classmethod
    def of_file(cls, file_id: int, size_bytes: int) -> LastReading:
        """Return the reading of a file in which nothing was found yet."""
        reading = cls()
        reading.file_id, reading.size_bytes = file_id, size_bytes
        reading.bytes_behind = size_bytes
        return reading

    @property
    def place(self) -> tuple[int, int, int] | None:
        """Where the reply ends: the file, the byte, and the size of the file; None = unknown."""
        if self.file_id is None or self.report is None:
            return None
        return self.file_id, self.size_bytes - self.bytes_behind, self.size_bytes
