"""Takes readings into a stored state: what a monitor does in memory, a hook does on the record.

Standard library only. Knows no host; the rules are the core's.
"""

from __future__ import annotations

from itertools import pairwise

from ultramon.context.epochs import has_fallen
from ultramon.context.forecast import HISTORY_TURNS, TurnHistory, forecast
from ultramon.context.ladder import NONE, next_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.ladder import Ladder
    from ultramon.state.record import StateRecord

CLOCK_SLACK_SECONDS = 5.0
"""Where what is known lies further ahead than this, the clock was set back."""
NEAR_RATIO = 0.10
"""Within this share of the limit before a rung, a reading that lags is worth waiting for."""


class StoredGauge:
    """The readings of one agent, kept in its state between the calls of a hook.

    Args:
        record: The state; changed in place.
        memory: JSON values beside the state's own fields: ``windowTokens``, ``triggerTokens`` and
            ``refusalTokens`` (as the host tells them), ``highestTokens``, ``turns`` and
            ``readingsAfter`` (epoch seconds; older readings belong to a window that is gone).
        ladder: The rungs.
        context_limit_tokens: The user's cap, or None.
        now: Epoch seconds.

    Attributes:
        events: What happened, to be stored with the state.
    """

    __slots__ = ("_cap", "_ladder", "_memory", "_now", "_record", "_resolved", "events")

    def __init__(
        self,
        record: StateRecord,
        memory: dict[str, Any],
        ladder: Ladder,
        context_limit_tokens: int | None,
        now: float,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self._record = record
        self._memory = memory
        self._ladder = ladder
        self._cap = context_limit_tokens
        self._now = now
        self._resolved = ladder.resolve(record.context_limit)

    def event(self, kind: str, **details: Any) -> None:
        """Note an event of this agent.

        Its number is that of the state it is stored with: a hook that is killed between the two
        writes makes the same event again at its next call, and it is stored once.
        """
        record = self._record
        source = f"agent:{record.agent_id}"
        self.events.append(record.event(kind, source=source, at=self._now, n=record.seq, **details))

    def resolve_limit(self) -> None:
        """Work the limit out anew, after the model or what the host tells has changed."""
        from ultramon.context.limits import resolve_limit

        record, memory = self._record, self._memory
        limit = resolve_limit(
            model=record.model,
            host=record.host,
            explicit_limit_tokens=self._cap,
            host_window_tokens=memory.get("windowTokens"),
            host_trigger_tokens=memory.get("triggerTokens"),
            host_refusal_tokens=memory.get("refusalTokens"),
            suspect_above_tokens=memory.get("highestTokens"),
        )
        record.context_limit = limit.context_limit_tokens
        record.context_window = limit.context_window_tokens
        record.limit_source = limit.source
        record.limit_suspect = limit.suspect
        record.limit_candidates = [
            {"name": c.name, "source": c.source, "tokens": c.tokens, "verdict": c.verdict}
            for c in limit.candidates
        ]
        self._resolved = self._ladder.resolve(record.context_limit)
        record.ladder = self._ladder.to_json()
        record.ladder_status = self._resolved.status
        if record.context_limit is None:
            record.threshold_status, record.action = None, NONE
        self._show()
        if record.measured_at is None:
            record.threshold_status = None if record.context_limit is None else self._ladder.base
        else:
            self._decide()

    def is_stale(self, at: float | None) -> bool:
        """Return whether a reading is older than this window or than the last reading."""
        newest = max(self._memory.get("readingsAfter", 0.0), self._record.measured_at or 0.0)
        return at is None or at < newest <= self._now + CLOCK_SLACK_SECONDS

    def take(self, tokens: int, output_tokens: int, at: float | None) -> bool:
        """Take the host's count of what is in the window; return whether it was taken.

        Args:
            tokens: Input side of the last response: new and cached.
            output_tokens: The reply to it.
            at: When it was made, epoch seconds; None = unknown, and not taken.
        """
        if at is None or self.is_stale(at) or tokens <= 0:
            return False
        record, memory = self._record, self._memory
        at = min(at, self._now)
        last = record.anchor
        if last is not None and last["isReport"] and has_fallen(tokens, last["tokens"]):
            self.begin_epoch("fall", tokens, at)
        record.measured_at = at
        record.estimated_tokens = tokens
        record.tokens_source = "reported"
        record.anchor = {
            "tokens": tokens,
            "isReport": True,
            "replyTokens": output_tokens,
            "exactTokens": 0,
            "calibration": 1.0,
        }
        _add_turn(memory.setdefault("turns", []), tokens, at)
        if tokens > memory.get("highestTokens", 0):
            memory["highestTokens"] = tokens
            if record.limit_suspect or tokens > (record.context_window or tokens):
                self.resolve_limit()
        self._show()
        self._decide()
        return True

    def begin_epoch(
        self, reason: str, tokens_after: int | None = None, at: float | None = None
    ) -> None:
        """Start a new filling of the window: level, reading and forecast of the old one go.

        Args:
            reason: ``compaction``, ``clear`` or ``fall``.
            tokens_after: What is in it already; None = unknown.
            at: When it began, epoch seconds; None = now. Older readings are not taken any more.
        """
        record, memory = self._record, self._memory
        at = self._now if at is None else at
        before = record.estimated_tokens
        record.epoch += 1
        record.epoch_started_at = at
        record.measured_at = None
        record.estimated_tokens = 0
        record.tokens_source = "estimated"
        record.anchor = None
        record.cumulative_chars = 0
        record.by_source = {}
        record.usage_ratio = None
        record.announced = {"epoch": record.epoch, "rungs": {}}
        record.action = NONE
        record.threshold_status = None if record.context_limit is None else self._ladder.base
        memory["turns"] = []
        memory["readingsAfter"] = at
        record.forecast = None
        self.event(
            "context_epoch_started", reason=reason, tokensBefore=before, tokensAfter=tokens_after
        )

    def _show(self) -> None:
        record = self._record
        limit = record.context_limit
        known = limit is not None and record.measured_at is not None
        record.usage_ratio = round(record.estimated_tokens / limit, 6) if known and limit else None
        history = TurnHistory()
        for tokens, at in self._memory.get("turns", ()):
            history.record(tokens, at, reported=True)
        record.forecast = forecast(history, record.estimated_tokens, limit, self._resolved)

    def _decide(self) -> None:
        record, resolved = self._record, self._resolved
        limit = record.context_limit
        ratio = None if limit is None else record.estimated_tokens / limit
        previous = record.threshold_status
        level = next_level(previous, ratio, resolved)
        if level is None or limit is None or level == previous:
            return
        rung = self._ladder.rung(level)
        record.threshold_status = level
        record.action = rung.action if rung else NONE
        rising = resolved.rank(level) > resolved.rank(previous)
        if rising:
            rungs = record.announced["rungs"]
            rungs[level] = rungs.get(level, 0) + 1
        elif previous is None:
            return  # the base level, known for the first time, is nothing to tell
        self.event(
            "context_threshold_reached" if rising else "context_relaxed",
            level=level,
            previousLevel=previous or self._ladder.base,
            action=record.action,
            usageRatio=round(record.estimated_tokens / limit, 6),
            tokens=record.estimated_tokens,
            contextLimit=limit,
            tokensSource=record.tokens_source,
        )

    def is_near(self, tokens: int) -> bool:
        """Return whether the next call may reach a rung: what lags by one call matters then."""
        limit = self._record.context_limit
        ratio = self._resolved.next_ratio(self._record.threshold_status)
        if limit is None or ratio is None:
            return False
        turns = [turn[0] for turn in self._memory.get("turns", ())] + [tokens]
        steps = [after - before for before, after in pairwise(turns)]
        stride = max(NEAR_RATIO * limit, 2 * max(steps, default=0))
        return tokens + stride >= ratio * limit

    def rank(self, level: str) -> int:
        """Return the height of a level on the ladder."""
        return self._resolved.rank(level)

    def describe_pace(self) -> str:
        """See `ultramon.context.note.describe_pace`."""
        from ultramon.context.note import describe_pace

        record = self._record
        return describe_pace(
            record.forecast,
            self._resolved,
            record.threshold_status,
            record.estimated_tokens,
            record.context_limit,
        )


def _add_turn(turns: list[list[float]], tokens: int, at: float) -> None:
    """Keep of the readings no more than the forecast needs."""
    if turns and turns[-1] == [tokens, at]:
        return
    # Of a row that does not grow only both ends matter: every second turn kept is one that grew.
    if len(turns) > 1 and turns[-2][0] >= turns[-1][0] >= tokens:
        turns.pop()
    turns.append([tokens, at])
    del turns[: -2 * (HISTORY_TURNS + 1)]
