"""How alerts are configured: keyword, else environment, else `ultramon.toml`, else default."""

from __future__ import annotations

import os

from ultramon.context.ladder import DEFAULT_REARM_MARGIN, Ladder, Rung, check_ratio
from ultramon.errors import ConfigurationError
from ultramon.system.environment import check_settings, is_on, read_toml, warn_of_misspelt_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Never

OK = "ok"
WARNING = "warning"
CAUTION = "caution"
CRITICAL = "critical"
EMERGENCY = "emergency"
STALE = "stale"
LEVELS = (WARNING, CAUTION, CRITICAL, EMERGENCY)
STATUSES = (OK, *LEVELS, STALE)

DEFAULT_DIRECTORY = ".ultramon"
DEFAULT_STALE_SECONDS = 5.0
DEFAULT_ACTIONS = {
    OK: "none needed",
    WARNING: "a good point to finish the subtask in hand and to note what is left",
    CAUTION: "finish what is in hand, then write down what is done, what is left, what comes next",
    CRITICAL: "recommended: record the state of the work before anything new is begun",
    EMERGENCY: "the window is nearly full: record the state of the work immediately",
    STALE: "check the integration that reports it, e.g. with `ultramon doctor`",
}

_SECTION = "alerts"
_PREFIX = "ULTRAMON_ALERT_"
_ENVIRONMENT = "environment"
_NO_ALERT = "ULTRAMON_NO_ALERT"
_MAX_TEXT_CHARS = 500
_MOST_SECONDS = 31_536_000
_THRESHOLDS = {WARNING: 0.70, CAUTION: 0.85, CRITICAL: 0.90, EMERGENCY: 0.95}
_RATIOS = tuple(f"{level}_threshold" for level in LEVELS)
_TABLES = ("actions", "every")
_NAMES = (
    "enabled", "directory", *_RATIOS, "rearm_margin", "minimum_status", "commands", "quiet_seconds",
    "stale_seconds", *_TABLES,
)  # fmt: skip


_VARIABLES = (
    "DIR",
    *(name.upper() for name in _NAMES if name not in ("enabled", "directory", *_TABLES)),
    *(f"ACTION_{status.upper()}" for status in STATUSES),
    "COMMAND",  # of the command `ultramon alert`, whose variables begin in the same way
)


class AlertConfig:
    """Everything about alerts that can be configured.

    What is not given comes from the environment (``ULTRAMON_ALERT_`` and the name in upper case,
    where nothing else is said), else from the ``[alerts]`` table of ``ultramon.toml``
    (``ULTRAMON_CONFIG``, else the working directory, else the user's configuration directory),
    else from the default.

    Args:
        enabled: False turns alerts off (default True; ``ULTRAMON_NO_ALERT=1``).
        directory: The project directory (default ``.ultramon``; ``ULTRAMON_ALERT_DIR``).
        warning_threshold: Usage ratio of the status, inclusive, in (0, 1] (default 0.70).
        caution_threshold: The same, above it (default 0.85).
        critical_threshold: The same, above it (default 0.90).
        emergency_threshold: The same, above it (default 0.95).
        rearm_margin: How far below a threshold usage must fall before its status can alert again,
            as a ratio, 0 <= margin < 1 (default 0.05).
        minimum_status: The lowest status that alerts (default ``warning``); stale data are told
            of nevertheless.
        commands: The commands after which to look, when they are named (default none: all; in the
            environment separated by commas).
        quiet_seconds: Time after an alert in which only a higher status alerts (default 0).
        stale_seconds: Age from which a project's reading is stale that does not say so itself
            (default 5).
        actions: What to do, by status, one printable line each of at most 500 characters; a status
            that is left out keeps its default (``ULTRAMON_ALERT_ACTION_`` and the status).
        every: After how many runs of a command to look, by command (default 1; keyword and file
            only).

    Raises:
        ConfigurationError: A value is out of range; names the value and where it came from.
    """

    __slots__ = (
        "actions",
        "commands",
        "directory",
        "enabled",
        "every",
        "ladder",
        "minimum_status",
        "quiet_seconds",
        "stale_seconds",
    )

    def __init__(
        self,
        *,
        enabled: bool | None = None,
        directory: str | None = None,
        warning_threshold: float | None = None,
        caution_threshold: float | None = None,
        critical_threshold: float | None = None,
        emergency_threshold: float | None = None,
        rearm_margin: float | None = None,
        minimum_status: str | None = None,
        commands: Iterable[str] | None = None,
        quiet_seconds: float | None = None,
        stale_seconds: float | None = None,
        actions: Mapping[str, str] | None = None,
        every: Mapping[str, int] | None = None,
        **misspelt: Never,
    ) -> None:
        check_settings(misspelt, _NAMES, "argument")
        values = _Values(
            {
                "enabled": enabled,
                "directory": directory,
                "warning_threshold": warning_threshold,
                "caution_threshold": caution_threshold,
                "critical_threshold": critical_threshold,
                "emergency_threshold": emergency_threshold,
                "rearm_margin": rearm_margin,
                "minimum_status": minimum_status,
                "commands": commands,
                "quiet_seconds": quiet_seconds,
                "stale_seconds": stale_seconds,
                "actions": actions,
                "every": every,
            }
        )
        self.enabled = values.flag("enabled")
        self.directory = values.line("directory", DEFAULT_DIRECTORY)
        self.ladder = values.ladder()
        self.minimum_status = values.choice("minimum_status", LEVELS)
        self.commands = values.lines("commands")
        self.quiet_seconds = values.seconds("quiet_seconds", 0.0)
        self.stale_seconds = values.seconds("stale_seconds", DEFAULT_STALE_SECONDS)
        self.actions = values.actions()
        self.every = values.counts("every")


class _Values:
    """The values given, each with its source, and how they are checked."""

    def __init__(self, given: dict[str, Any]) -> None:
        table, path = read_toml(_SECTION)
        check_settings(table, _NAMES, path, f"[{_SECTION}]")
        warn_of_misspelt_variables(_PREFIX, _VARIABLES)
        self._layers = [
            ({name: value for name, value in given.items() if value is not None}, "argument"),
            (_from_environment(), _ENVIRONMENT),
            (table, f"{path} [{_SECTION}]"),
        ]

    def _find(self, name: str) -> tuple[Any, str]:
        """Return the value that counts and its source; None where nobody gives one."""
        for layer, source in self._layers:
            if name in layer:
                return layer[name], _variable(name) if source == _ENVIRONMENT else source
        return None, "default"

    def flag(self, name: str) -> bool:
        value, source = self._find(name)
        if value is None:
            return True
        if not isinstance(value, bool):
            raise ConfigurationError(name, value, "true or false", source)
        return value

    def line(self, name: str, default: str) -> str:
        value, source = self._find(name)
        return default if value is None else _check_line(name, value, source)

    def lines(self, name: str) -> tuple[str, ...]:
        value, source = self._find(name)
        if isinstance(value, str) and source.startswith(_PREFIX):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) or not (value is None or hasattr(value, "__iter__")):
            raise ConfigurationError(name, value, "a list of command names", source)
        return tuple(_check_line(name, one, source) for one in value or ())

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value, source = self._find(name)
        if value is None:
            return choices[0]
        if value not in choices:
            raise ConfigurationError(name, value, f"one of {', '.join(choices)}", source)
        return str(value)

    def seconds(self, name: str, default: float) -> float:
        value, source = self._find(name)
        if value is None:
            return default
        value = _to_float(value, source)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 <= value <= _MOST_SECONDS
        ):
            raise ConfigurationError(name, value, f"seconds from 0 to {_MOST_SECONDS:,}", source)
        return float(value)

    def ratio(self, name: str, default: float) -> tuple[float, str]:
        value, source = self._find(name)
        if value is None:
            return default, source
        return check_ratio(name, _to_float(value, source), source), source

    def ladder(self) -> Ladder:
        """Return the four thresholds as a ladder above ``ok``."""
        rungs: list[Rung] = []
        for level, name in zip(LEVELS, _RATIOS, strict=True):
            ratio, source = self.ratio(name, _THRESHOLDS[level])
            lower = rungs[-1] if rungs else None
            if lower is not None and ratio <= (lower.ratio or 0.0):
                allowed = f"above {lower.name}_threshold={lower.ratio}"
                raise ConfigurationError(name, ratio, allowed, source)
            rungs.append(Rung(level, ratio))
        margin, source = self._find("rearm_margin")
        if margin is None:
            margin = DEFAULT_REARM_MARGIN
        try:
            return Ladder(rungs, base=OK, rearm_margin=_to_float(margin, source))
        except ConfigurationError as error:
            raise ConfigurationError(error.name, error.value, error.allowed, source) from None

    def actions(self) -> dict[str, str]:
        actions = dict(DEFAULT_ACTIONS)
        for layer, source in reversed(self._layers):
            for status, text in _check_table("actions", layer.get("actions"), source).items():
                where = f"{_PREFIX}ACTION_{status.upper()}" if source == _ENVIRONMENT else source
                if status not in STATUSES:
                    allowed = f"one of {', '.join(STATUSES)}"
                    raise ConfigurationError("actions: status", status, allowed, source)
                actions[status] = _check_line(f"actions: {status}", text, where)
        return actions

    def counts(self, name: str) -> dict[str, int]:
        value, source = self._find(name)
        table = _check_table(name, value, source)
        return {
            _check_line(name, command, source): check_every(f"{name}: {command}", count, source)
            for command, count in table.items()
        }


def check_every(name: str, value: object, source: str = "argument") -> int:
    """Return after how many runs to look, or raise ConfigurationError naming it."""
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise ConfigurationError(name, value, "a whole number from 1 to 1,000,000", source)
    return value


def _check_line(name: str, value: object, source: str) -> str:
    # What is shown to an agent, or becomes part of a path, must not draw or hide anything.
    if not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MAX_TEXT_CHARS):
        allowed = f"one line of 1 to {_MAX_TEXT_CHARS} printable characters"
        raise ConfigurationError(name, value, allowed, source)
    return value


def _check_table(name: str, value: object, source: str) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        return dict(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        raise ConfigurationError(name, value, "a table", source) from None


def _variable(name: str) -> str:
    return f"{_PREFIX}DIR" if name == "directory" else _PREFIX + name.upper()


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in _NAMES:
        text = os.environ.get(_variable(name))
        if text and name not in ("enabled", *_TABLES):
            values[name] = text
    if is_on(_NO_ALERT):
        values["enabled"] = False
    values["actions"] = {
        status: text
        for status in STATUSES
        if (text := os.environ.get(f"{_PREFIX}ACTION_{status.upper()}"))
    }
    return values


def _to_float(value: Any, source: str) -> Any:
    """Return a text of the environment as a number where it is one."""
    if not source.startswith(_PREFIX) or not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
