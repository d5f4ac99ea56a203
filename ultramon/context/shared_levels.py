"""The two levels of the table ``[levels]``: for monitors, hooks and alerts together.

They hold wherever no nearer setting names a threshold. Standard library only.
"""

from __future__ import annotations

import os

from ultramon.context.ladder import CRITICAL, LADDERS, WARNING, Ladder
from ultramon.errors import ConfigurationError
from ultramon.system.settings import OrNone, Settings, parse_number, setting, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "ULTRAMON_LEVELS"
_PERCENT = OrNone(whole_number(1, 100, "percent"))
_NAMES = (WARNING, CRITICAL)
_ALLOWED = "whole percents that rise, with a comma between them: 70,85"


class SharedLevels(Settings, table="levels"):
    """The levels that hold where no nearer setting names one: docs/settings.md lists them.

    Each comes from ``ULTRAMON_LEVELS`` (both, such as ``70,85``), else from the table ``[levels]``
    of ``ultramon.toml``. Nothing of it is taken from a file in the working directory that is not
    trusted: whether a level warns earlier depends on who reads it.

    Raises:
        ConfigurationError: No whole percents, or a warning that is not below critical.
    """

    warning: int | None = setting(
        _PERCENT, None, "Where `warning` begins; below `critical`.", variable=""
    )
    critical: int | None = setting(
        _PERCENT, None, "Where `critical` begins; of alerts `caution`.", variable=""
    )

    def __init__(self) -> None:
        given = _given()
        super().__init__(**given)
        self.sources.update(dict.fromkeys(given, VARIABLE))
        warning, critical = self.warning, self.critical
        if warning is not None and critical is not None and warning >= critical:
            raise self._contradiction(WARNING, f"below critical={critical}")

    def _name_refusal(self) -> None:
        """Leave it to the settings that take the levels over: they know where it is logged."""

    @property
    def ratios(self) -> dict[str, tuple[float, str]]:
        """The levels that are set, as usage ratios with their sources."""
        return {
            name: (getattr(self, name) / 100, self.sources[name])
            for name in _NAMES
            if getattr(self, name) is not None
        }


def _given() -> dict[str, Any]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    parts = [parse_number(part.strip()) for part in text.split(",")]
    try:
        if len(parts) != len(_NAMES):
            raise ConfigurationError(VARIABLE, text, _ALLOWED)
        return {
            name: _PERCENT.check(name, part, VARIABLE)
            for name, part in zip(_NAMES, parts, strict=True)
        }
    except ConfigurationError:
        raise ConfigurationError(VARIABLE, text, _ALLOWED, "environment") from None


def shared_ladder() -> Ladder:
    """Return the ladder of monitors that configure none: the default one with these levels.

    Raises:
        ConfigurationError: As for `SharedLevels`, or one level passes the default of the other.
    """
    levels = SharedLevels().ratios
    warning, critical = (levels.get(name, (LADDERS["sdk"][name], ""))[0] for name in _NAMES)
    return Ladder.default(warning, critical)
