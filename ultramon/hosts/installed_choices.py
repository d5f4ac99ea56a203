"""The choices of an installation, in one small file, so that a hook looks nothing up.

Standard library only: every hook call reads it.
"""

from __future__ import annotations

import os

from ultramon.context.ladder import (
    ACTIONS,
    CLAUDE_CODE_LADDER,
    FORCE_RETURN,
    Ladder,
)
from ultramon.errors import ConfigurationError, StateCorruptError, StateSchemaError
from ultramon.system import compact_json
from ultramon.system.files import (
    delete_file,
    make_private_directory,
    read_private_file,
    replace_file,
)
from ultramon.system.timestamps import format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
MAX_LIMIT_TOKENS = 1_000_000_000

AGENT = "agent"
ORCHESTRATOR = "orchestrator"
BOTH = "both"
NO_AUDIENCE = "none"
AUDIENCES = (AGENT, ORCHESTRATOR, BOTH, NO_AUDIENCE)
STATUS_LINES = ("own", "chained", "both", "none")
STATUS_LINE_PARTS = ("context", "subagents", "cost", "budget", "plan", "cache", "continue")
"""The parts of the status line, in their usual order."""

_SUFFIX = ".json"
OFF_SUFFIX = ".enforcement-off.json"
"""Of the file, after the host's name, that says why enforcement has switched itself off."""


def choices_path(state_directory: str, host: str) -> str:
    """Return where the choices of a host's installations lie."""
    return os.path.join(os.path.abspath(state_directory), host + _SUFFIX)


def host_of(path: str) -> str:
    """Return the name of the host whose choices lie at a path."""
    return os.path.basename(path).removesuffix(_SUFFIX)


class InstalledChoices:
    """The choices of an installation.

    Attributes:
        path: The file.
        host: Name of the host, which the file is named after.
        state_directory: Where the agents' states are; the file lies in it.
        audience: Who is warned that a rung is reached: ``agent`` (the session itself, in its
            conversation), ``orchestrator`` (events for a fleet only), ``both`` or ``none``.
        context_limit_tokens: The user's cap in tokens, or None.
        ladder: The rungs.
        chosen_levels: Those of its rungs that a person chose for this host.
        handoff_note: Text for the instructions of a compaction, or None.
        critical_note: The owner's sentence for an agent that is asked to return, or None.
        note_from: The lowest action with which it is said; a relay's may come at the warning.
        pins: Whether a conversation is given back, after its compaction, what must not be lost;
            then the last prompt of a person is kept in the session's state.
        enforce: The level from which an agent that is asked to return, and continues, is ended;
            None = no agent is.
        enforce_dry_run: Whether it is only noted which agent would be ended.
        resident: Whether one process answers the hooks of all sessions, where it can.
        resident_choice: What a person decided about that; None = nothing.
        installed_at: Epoch seconds; None when nothing is installed.
        status_line_show: ``own``, ``chained``, ``both`` or ``none``.
        status_line_parts: The parts of ultramon's own, in their order.
        status_line_chained: The status line that was there before ultramon's, as in the
            settings, or None.
        installations: Of each settings file that was changed ``settings`` (its path),
            ``interpreter`` and ``backup`` (a path, or None where there was no file).
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.host = host_of(path)
        self.state_directory = os.path.dirname(self.path)
        self.audience = AGENT
        self.context_limit_tokens: int | None = None
        self.ladder = CLAUDE_CODE_LADDER
        self.chosen_levels: list[str] = []
        self.handoff_note: str | None = None
        self.critical_note: str | None = None
        self.note_from = FORCE_RETURN
        self.pins = False
        self.enforce: str | None = None
        self.enforce_dry_run = False
        self.resident = False
        self.resident_choice: bool | None = None
        self.installed_at: float | None = None
        self.status_line_show = "own"
        self.status_line_parts = list(STATUS_LINE_PARTS)
        self.status_line_chained: dict[str, Any] | None = None
        self.installations: list[dict[str, Any]] = []
        self._stored: bytes | None = None

    @classmethod
    def load(cls, path: str) -> InstalledChoices:
        """Read the file; where there is none every choice is the default.

        Raises:
            StateCorruptError: It is not what an installation wrote.
            StateSchemaError: A newer ultramon wrote it.
            OSError: The system refused to read it.
        """
        installed = cls(path)
        try:
            data, _ = read_private_file(installed.path)
        except FileNotFoundError:
            return installed
        installed._stored = data
        try:
            installed._take(compact_json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, StateSchemaError):
                raise
            reason = f"no {error} in it" if isinstance(error, KeyError) else str(error)
            raise StateCorruptError(
                installed.path, reason, f"install again: ultramon install {installed.host}"
            ) from error
        return installed

    def _take(self, value: dict[str, Any]) -> None:
        if value["schema"] > SCHEMA:
            raise StateSchemaError(
                self.path, f"schema {value['schema']} was written by a newer ultramon", "upgrade"
            )
        line = value["statusLine"]
        self.audience = check_choice("audience", value["audience"], AUDIENCES)
        cap = value["contextLimitTokens"]
        if cap is not None and (type(cap) is not int or not 0 < cap <= MAX_LIMIT_TOKENS):
            allowed = f"null or a whole number from 1 to {MAX_LIMIT_TOKENS:,}"
            raise ConfigurationError("contextLimitTokens", cap, allowed, "file")
        self.context_limit_tokens = cap
        # The default ladder is there already; to build it once more costs a hook time.
        if value["ladder"] != _DEFAULT_LADDER_JSON:
            self.ladder = Ladder.from_json(value["ladder"])
        chosen = _optional("chosenLevels", value.get("chosenLevels"), list, "a list")
        # An installation that does not say was changed only where a person chose.
        self.chosen_levels = self._changed_levels() if chosen is None else chosen
        self.handoff_note = _optional("handoffNote", value["handoffNote"], str, "text")
        # Older installations have none of these.
        self.critical_note = _optional("criticalNote", value.get("criticalNote"), str, "text")
        self.note_from = check_choice("noteFrom", value.get("noteFrom", FORCE_RETURN), ACTIONS)
        self.pins = bool(_optional("pins", value.get("pins"), bool, "true or false"))
        self.enforce = _optional("enforce", value.get("enforce"), str, "a level")
        dry_run = value.get("enforceDryRun")
        self.enforce_dry_run = bool(_optional("enforceDryRun", dry_run, bool, "true or false"))
        self.resident = bool(_optional("resident", value.get("resident"), bool, "true or false"))
        # One that was chosen before it was the default was chosen by a person.
        chosen = value.get("residentChoice", self.resident or None)
        self.resident_choice = _optional("residentChoice", chosen, bool, "true or false")
        self.installed_at = parse_time(value["installedAt"])
        self.status_line_show = check_choice("statusLine", line["show"], STATUS_LINES)
        parts = line.get("parts")
        if parts is not None:
            self.status_line_parts = check_parts(parts)
        self.status_line_chained = _optional("chained", line["chained"], dict, "an object")
        self.installations = list(value["installations"])

    def to_json(self) -> dict[str, Any]:
        """Return the choices as the file holds them."""
        usual = self.status_line_parts == list(STATUS_LINE_PARTS)
        return {
            "schema": SCHEMA,
            "stateDirectory": self.state_directory,
            "audience": self.audience,
            "contextLimitTokens": self.context_limit_tokens,
            "ladder": self.ladder.to_json(),
            "chosenLevels": self.chosen_levels,
            "handoffNote": self.handoff_note,
            "criticalNote": self.critical_note,
            "noteFrom": self.note_from,
            "pins": self.pins,
            "enforce": self.enforce,
            "enforceDryRun": self.enforce_dry_run,
            "resident": self.resident,
            "residentChoice": self.resident_choice,
            "installedAt": None if self.installed_at is None else format_time(self.installed_at),
            "statusLine": {
                "show": self.status_line_show,
                "chained": self.status_line_chained,
                **({} if usual else {"parts": self.status_line_parts}),
            },
            "installations": self.installations,
        }

    def _changed_levels(self) -> list[str]:
        defaults = CLAUDE_CODE_LADDER.rungs
        return [rung.name for rung in self.ladder.rungs if rung not in defaults]

    @property
    def switch_path(self) -> str:
        """A file that is there while enforcement has switched itself off."""
        return os.path.join(self.state_directory, self.host + OFF_SUFFIX)

    @property
    def changes(self) -> bool:
        """Whether an installation with these choices would change a file of ultramon."""
        return self._encoded() != self._stored or os.path.lexists(self.switch_path)

    def _encoded(self) -> bytes:
        return compact_json.dumps(self.to_json()).encode("ascii") + b"\n"

    def install(self) -> None:
        """Write the file, and switch enforcement on again, if it had switched itself off.

        Raises:
            StateWriteError: The file system refused.
            StateDirectoryError: The state directory is not safe to use.
        """
        self.save()
        delete_file(self.switch_path)

    def save(self) -> None:
        """Write the file.

        Raises:
            StateWriteError: The file system refused.
            StateDirectoryError: The state directory is not safe to use.
        """
        make_private_directory(self.state_directory)
        replace_file(self.path, self._encoded())


_DEFAULT_LADDER_JSON = CLAUDE_CODE_LADDER.to_json()


def check_choice(name: str, value: object, allowed: tuple[str, ...], source: str = "file") -> str:
    """Return a value that is one of a few, or raise ConfigurationError naming it."""
    if value not in allowed:
        raise ConfigurationError(name, value, f"one of {', '.join(allowed)}", source)
    return str(value)


def check_parts(value: object, source: str = "file") -> list[str]:
    """Return parts of the status line in their order, or raise ConfigurationError naming them."""
    parts = value if isinstance(value, list) else []
    if not parts or len({*parts} & {*STATUS_LINE_PARTS}) < len(parts):
        allowed = f"some of {', '.join(STATUS_LINE_PARTS)}, each once"
        raise ConfigurationError("status_line_parts", value, allowed, source)
    return parts


def _optional(name: str, value: Any, kind: type, allowed: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(name, value, f"null or {allowed}", "file")
    return value
