"""The outcome of a check of one context window."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.alerts.readings import Reading
    from ultramon.state.level_share import LevelShare


class AlertOutcome:
    """The outcome of a check; true when there was an alert.

    Attributes:
        alerted: Whether there was an alert.
        status: ``ok``, ``warning``, ``caution``, ``critical``, ``emergency`` or ``stale`` (also
            without any data); None without a check: turned off, or not this run's turn.
        percentage: Of the limit, 0.0 and more, not clamped; None = unknown.
        tokens: In the window; None = unknown.
        limit: Context limit in tokens; None = unknown.
        action: What to do, as configured for the status; empty without one.
        source: The file of the numbers; None without data.
        session: The session; None without one.
        reason: Why there is no better answer, for people; empty for a good one.
        rounds: Whether the whole percentage is the nearest one, as the agent's host shows it.
        share: Where the status begins; None for one that is no level.
    """

    _FIELDS = (
        "action",
        "alerted",
        "limit",
        "percentage",
        "reason",
        "session",
        "source",
        "status",
        "tokens",
    )
    __slots__ = (*_FIELDS, "rounds", "share")

    def __init__(
        self,
        status: str | None,
        *,
        alerted: bool = False,
        reading: Reading | None = None,
        action: str = "",
        session: str | None = None,
        reason: str = "",
        share: LevelShare | None = None,
    ) -> None:
        ratio = None if reading is None else reading.usage_ratio
        self.alerted = alerted
        self.status = status
        # Nine decimals: 0.29 * 100 is 28.999999999999996.
        self.percentage = None if ratio is None else round(ratio * 100, 9)
        self.tokens = None if reading is None else reading.tokens
        self.limit = None if reading is None else reading.limit_tokens
        self.action = action
        self.source = None if reading is None else reading.path
        self.session = session if reading is None else reading.session
        self.rounds = reading is not None and reading.rounds
        self.share = share
        self.reason = reason or ("" if reading is None else reading.problem)

    def __bool__(self) -> bool:
        return self.alerted

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as the command line prints it with ``--json``."""
        return {name: getattr(self, name) for name in self._FIELDS}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._FIELDS)
        return f"AlertOutcome({values})"
