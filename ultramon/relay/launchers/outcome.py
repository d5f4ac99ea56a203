"""How one context ended, in words that hold for every host."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

COMPLETED = "completed"
"""The host ended its turn by itself. What it has done is not known from that."""
STOPPED = "stopped"
"""A hook ended the turn: the context handed over."""
LIMITED = "limited"
"""The provider takes no requests for now: waiting helps."""
OVERFLOWED = "overflowed"
"""The context no longer fits into the window."""
FAILED = "failed"
"""The host said why it gave up, or exited with a failure; see `ContextOutcome.error`."""
CUT_OFF = "cut_off"
"""The output ends without a result: the process was killed, or broke down."""

RATE, USAGE, OVERLOADED = "rate", "usage", "overloaded"
MAX_REQUEST_CHARS = 200
MAX_REFUSED = 100
MAX_TEXT_CHARS = 8000
"""The last text is what a successor gets as notes."""
_SIGNAL_CODES = frozenset(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
)
"""Exit codes of hosts that take a signal and then exit, as shells write them."""


def is_signal(exit_code: int | None) -> bool:
    """Return whether a process ended by a signal, as far as its exit code says."""
    return exit_code is not None and (exit_code < 0 or exit_code in _SIGNAL_CODES)


def end_after_result(end: str, exit_code: int | None) -> tuple[str, str | None]:
    """Return end and error of a process that printed the end of its turn before it exited.

    A signal takes nothing back, for the turn was over; any other exit code but 0 is a failure.

    Args:
        end: `COMPLETED` or `STOPPED`, as its result says.
        exit_code: Of the process, negative for a signal; None = unknown.
    """
    if exit_code in (0, None) or is_signal(exit_code):
        return end, None
    return FAILED, f"exit {exit_code} after its result"


@dataclass(frozen=True, slots=True)
class ProviderLimit:
    """Why the provider takes no requests.

    Attributes:
        kind: ``rate`` (requests or tokens per minute), ``usage`` (of the account in some hours or
            days) or ``overloaded`` (the provider itself).
        ends_at: Epoch seconds; None = the host did not say.
    """

    kind: str
    ends_at: float | None = None


def limit_by_status(status: int | None) -> ProviderLimit | None:
    """Return the limit that an HTTP status of the provider means; None = it means none."""
    if status == 429:
        return ProviderLimit(RATE)
    return ProviderLimit(OVERLOADED) if status is not None and status >= 500 else None


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A tool call that the user's permissions did not allow.

    Attributes:
        tool: Name of the tool.
        request: What it was to do, at most 200 characters, in the agent's own words.
    """

    tool: str
    request: str


@dataclass(frozen=True, slots=True)
class SpentTokens:
    """Tokens of all requests of a context together: what was paid, not what is in the window."""

    input_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, more: SpentTokens) -> SpentTokens:
        names = SpentTokens.__dataclass_fields__
        return SpentTokens(*(getattr(self, name) + getattr(more, name) for name in names))

    @property
    def all_tokens(self) -> int:
        """What went in and what came out."""
        return self.all_input_tokens + self.output_tokens

    @property
    def all_input_tokens(self) -> int:
        """What went in, cached or not."""
        return self.input_tokens + self.cache_creation_tokens + self.cache_read_tokens


@dataclass(frozen=True, slots=True)
class ContextOutcome:
    """The end of one context.

    Attributes:
        end: One of the constants of this module.
        exit_code: Of the process, negative for a signal; None = unknown.
        session_id: The host's name for the session, to resume it by; None = it never began.
        reason: The host's own word for the end, empty when it gave none.
        last_text: The agent's last text, at most 8,000 characters.
        error: What went wrong, in the host's words; None = nothing.
        limit: With `LIMITED`.
        refused: Refused calls, in order, at most 100.
        refused_count: All of them.
        retries: Requests that the host repeated by itself.
        spent: Tokens paid; zeros where the host did not come to say.
        is_session_sum: Whether these are of all processes of the session, not of this one alone.
        cost_usd: As the host reckons; None = it did not say.
        skipped_lines: Lines of the output that were no object.
        plan: Limits of the user's plan as the host said last: name, used ratio, and reset in epoch
            seconds of each, as it wrote them.
    """

    end: str
    exit_code: int | None = None
    session_id: str | None = None
    reason: str = ""
    last_text: str = ""
    error: str | None = None
    limit: ProviderLimit | None = None
    refused: tuple[RefusedCall, ...] = ()
    refused_count: int = 0
    retries: int = 0
    spent: SpentTokens = field(default_factory=SpentTokens)
    is_session_sum: bool = False
    cost_usd: float | None = None
    skipped_lines: int = 0
    plan: tuple[tuple[str, object, object], ...] = ()

    @property
    def ended_well(self) -> bool:
        """Whether the host says that its turn ended as it should; no word on the work."""
        return self.end in (COMPLETED, STOPPED)
