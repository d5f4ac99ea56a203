"""The statuses of a context window and the settings of alerts about it."""

from __future__ import annotations

from ultramon.context.ladder import (
    CAUTION,
    CRITICAL,
    DEFAULT_REARM_MARGIN,
    EMERGENCY,
    LADDERS,
    WARNING,
    Ladder,
    Rung,
)
from ultramon.errors import ConfigurationError
from ultramon.system.environment import is_yes
from ultramon.system.settings import (
    ARGUMENT,
    MARGIN,
    MOST_SECONDS,
    RATIO,
    Kind,
    Settings,
    choice,
    number,
    setting,
    simple_kind,
    whole_number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

OK = "ok"
STALE = "stale"
RATIOS = LADDERS["alerts"]
"""Usage ratio at which each level begins by default."""
LEVELS = tuple(RATIOS)
DEFAULT_ACTIONS = {
    OK: "none needed",
    WARNING: "a good point to finish the subtask in hand and to note what is left",
    CAUTION: "finish what is in hand, then write down what is done, what is left, what comes next",
    CRITICAL: "recommended: record the state of the work before anything new is begun",
    EMERGENCY: "the window is nearly full: record the state of the work immediately",
    STALE: "check the integration that reports it, e.g. with `ultramon doctor`",
}
STATUSES = tuple(DEFAULT_ACTIONS)

_MAX_TEXT_CHARS = 500
_SECONDS = number(
    f"seconds from 0 to {MOST_SECONDS:,}", lambda value: 0 <= value <= MOST_SECONDS, "seconds"
)
# What an agent reads, or what becomes part of a path, must not draw or hide anything.
_LINE = simple_kind(
    f"one line of 1 to {_MAX_TEXT_CHARS} printable characters",
    lambda text: isinstance(text, str) and text.isprintable() and 0 < len(text) <= _MAX_TEXT_CHARS,
)
_RUNS = whole_number(1, 1_000_000)


def check_every(name: str, value: object, source: str = ARGUMENT) -> int:
    """Return the number of runs per look, 1 to 1,000,000, or raise ConfigurationError."""
    count: int = _RUNS.check(name, value, source)
    return count


def _check_lines(name: str, value: Any, source: str) -> tuple[str, ...]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise ConfigurationError(name, value, _LINES.allowed, source)
    return tuple(_LINE.check(name, line, source) for line in value)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_actions(name: str, value: Any, source: str) -> dict[str, str]:
    for status in (actions := _as_table(name, value, source)):
        if status not in STATUSES:
            allowed = f"one of {', '.join(STATUSES)}"
            raise ConfigurationError(f"{name}: status", status, allowed, source)
    return {
        status: _LINE.check(f"{name}: {status}", text, source) for status, text in actions.items()
    }


def _check_every_table(name: str, value: Any, source: str) -> dict[str, int]:
    return {
        _LINE.check(name, command, source): check_every(f"{name}: {command}", count, source)
        for command, count in _as_table(name, value, source).items()
    }


def _as_table(name: str, value: Any, source: str) -> dict[str, Any]:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise ConfigurationError(name, value, "a table", source) from None


_FLAG = simple_kind(
    "true or false", lambda value: isinstance(value, bool), parse=lambda text: not is_yes(text)
)
_LINES = Kind("a list of command names", _check_lines, parse=_split)
_ACTIONS = Kind(f"a table of lines of at most {_MAX_TEXT_CHARS} characters", _check_actions)
_EVERY = Kind("a table of whole numbers from 1 to 1,000,000", _check_every_table)


class AlertConfig(
    Settings,
    table="alerts",
    other_variables=("COMMAND", "EVERY"),  # of the command `ultramon alert`
    none_is_default=True,
):
    """Everything about alerts that can be configured: docs/settings.md lists the settings.

    A setting that is not given, or is None, comes from its environment variable
    (``ULTRAMON_ALERT_`` and the name in upper case, where docs/settings.md names no other), else
    from the table ``[alerts]`` of ``ultramon.toml`` (``ULTRAMON_CONFIG``, else the working
    directory, else the user's configuration directory), else from the default here.

    Raises:
        ConfigurationError: A value is out of range; names the value and its source.
    """

    enabled: bool = setting(
        _FLAG, True, "Whether to alert at all; the variable set to `1` turns alerts off.",
        variable="ULTRAMON_NO_ALERT",
    )  # fmt: skip
    directory: str = setting(
        _LINE, ".ultramon", "The project directory.", variable="ULTRAMON_ALERT_DIR"
    )
    warning_threshold: float = setting(RATIO, RATIOS[WARNING], "Where the status `warning` begins.")
    caution_threshold: float = setting(
        RATIO, RATIOS[CAUTION], "Where `caution` begins; above `warning_threshold`."
    )
    critical_threshold: float = setting(
        RATIO, RATIOS[CRITICAL], "Where `critical` begins; above `caution_threshold`."
    )
    emergency_threshold: float = setting(
        RATIO, RATIOS[EMERGENCY], "Where `emergency` begins; above `critical_threshold`."
    )
    rearm_margin: float = setting(
        MARGIN,
        DEFAULT_REARM_MARGIN,
        "How far below a threshold usage must fall before its status alerts again.",
    )
    minimum_status: str = setting(
        choice(*LEVELS), WARNING, "The lowest status that alerts; stale data alert all the same."
    )
    commands: Collection[str] = setting(
        _LINES,
        (),
        "The commands after which to look, in the variable separated by commas; empty = all. A"
        " call that names no command always looks.",
    )
    quiet_seconds: float = setting(
        _SECONDS, 0.0, "Time after an alert in which only a higher status alerts."
    )
    stale_seconds: float = setting(
        _SECONDS,
        5.0,
        "Age from which the reading of a project is stale, where the reading does not say so"
        " itself.",
    )
    actions: Mapping[str, str] = setting(
        _ACTIONS,
        DEFAULT_ACTIONS,
        "What to do, by status. Each source fills only the statuses that it names.",
        variable="ULTRAMON_ALERT_ACTION",
        keys=STATUSES,
    )
    every: Mapping[str, int] = setting(
        _EVERY,
        {},
        "Look only after every so many runs, by command; without an entry after each.",
        variable="",
    )

    def _check_together(self) -> None:
        rungs: list[Rung] = []
        for level in LEVELS:
            name = f"{level}_threshold"
            ratio: float = getattr(self, name)
            if rungs and ratio <= (rungs[-1].ratio or 0.0):
                raise self._contradiction(
                    name, f"above {rungs[-1].name}_threshold={rungs[-1].ratio}"
                )
            rungs.append(Rung(level, ratio))
        vars(self)["_ladder"] = Ladder(rungs, base=OK, rearm_margin=self.rearm_margin)

    @property
    def ladder(self) -> Ladder:
        """The four thresholds as a ladder above ``ok``."""
        ladder: Ladder = vars(self)["_ladder"]
        return ladder
