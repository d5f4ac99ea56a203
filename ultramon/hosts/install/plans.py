"""Installation, as every host plans it: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ultramon.context.ladder import CRITICAL, FORCE_RETURN, LADDERS, WARNING, Ladder
from ultramon.context.note import check_critical_note
from ultramon.context.shared_levels import SharedLevels
from ultramon.errors import ConfigurationError
from ultramon.hosts.installed_choices import AUDIENCES, InstalledChoices, check_choice, choices_path
from ultramon.system.files import delete_file, replace_file

MAX_HANDOFF_NOTE_CHARS = 2_000
NO_LEVEL = "none"
OPTIONAL = (
    "plugin", "status_line", "status_line_parts", "resident", "enforce", "enforce_dry_run",
)  # fmt: skip
"""Options that only those hosts take which name them in `Setup.own_options`."""


class Choices(NamedTuple):
    """What a person decided at an installation; None = as before, else the default.

    The fields named in `Setup.own_options` are None for hosts that do not offer them.
    """

    audience: str | None = None
    """``agent`` (default), ``orchestrator``, ``both`` or ``none``."""
    context_limit_tokens: int | None = None
    """0 takes an earlier cap away."""
    warning: float | None = None
    """Usage ratio, a whole percent; default that of ``[levels]``, else 0.65."""
    critical: float | None = None
    """Usage ratio, a whole percent; default that of ``[levels]``, else 0.75."""
    handoff_note: str | None = None
    """Empty takes an earlier note away."""
    status_line: str | None = None
    """``own`` (default), ``chained`` (default where there is another one), ``both``, ``none``."""
    status_line_parts: str | None = None
    """The parts of ultramon's own, with commas, in their order; empty = the usual ones."""
    critical_note: str | None = None
    """Made one printable line; empty takes an earlier one away."""
    resident: bool | None = None
    """Have one process answer the hooks of all sessions; default yes, where that is possible."""
    pins: bool | None = None
    """Give rules, the last prompt and open tasks back after a compaction; default no."""
    enforce: str | None = None
    """The level from which agents that do not return are ended; `NO_LEVEL` (default) = none."""
    enforce_dry_run: bool | None = None
    """Only note which would be ended; with `enforce` None = no, alone as before."""


class SetupRequest(NamedTuple):
    """What ``ultramon install`` or ``ultramon uninstall`` was asked for."""

    host: str
    """Its name."""
    cwd: str
    """The working directory, whose project settings count."""
    state_directory: str
    layer: str | None
    """``user``, ``project`` or ``local``; None = not given, the host's default."""
    choices: Choices = Choices()
    plugin: str | None = None
    """Write or delete a plugin folder instead of changing settings."""
    force: bool = False
    """Install even a program that may not last."""


class Offer(NamedTuple):
    """A choice that was not made, and that a person may want to make another way."""

    question: str
    """To be answered by yes or no."""
    field: str
    """The field of `Choices`."""
    value: str
    """What yes means."""


@dataclass(kw_only=True)
class Plan:
    """What a command would do to a file of the host, and to ultramon's own.

    Attributes:
        path: The host's file, for people.
        before: Its bytes; None = there is none.
        after: The bytes that it shall hold; None = it shall be gone.
        notes: Sentences for the person.
        warnings: Sentences that they should know before they rely on it.
    """

    path: str = field(init=False)
    before: bytes | None = field(init=False)
    after: bytes | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written or deleted."""
        raise NotImplementedError

    @property
    def changes_settings(self) -> bool:
        """Whether a file of the host will be another one."""
        return self.before != self.after

    @property
    def contents(self) -> str:
        """What the host's file holds of ultramon afterwards, for people."""
        return "hooks"

    @property
    def offer(self) -> Offer | None:
        """What to ask a person before this is done; None = nothing."""
        return None

    def diff(self) -> str:
        """Return what changes in the host's files, as a unified diff without secrets."""
        return diff_text(self.path, self.before, self.after)

    def apply(self, now: float) -> None:
        """Do it.

        Args:
            now: Epoch seconds.

        Raises:
            StateError: The system refused; what was there before is intact.
        """
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """Return further members of the output of ``--json``."""
        return {}


@dataclass(kw_only=True)
class FilePlan(Plan):
    """A plan for a host whose hooks are one file of ultramon's own, or one that it may replace.

    Attributes:
        file: The file, absolute.
        installed: The choices to store; None = the choices and the failure log go.
        host: Name of the host.
        state_directory: Where choices and states are.
    """

    file: str
    host: str
    state_directory: str
    installed: InstalledChoices | None = None

    def __post_init__(self) -> None:
        self.path = self.file
        try:
            with open(self.file, "rb") as stream:
                self.before = stream.read()
        except FileNotFoundError:
            self.before = None

    @property
    def changes(self) -> bool:
        """Whether the file changes, or choices are stored or deleted."""
        if self.installed is None:
            return self.changes_settings or bool(own_files(self.state_directory, self.host))
        return self.changes_settings or self.installed.changes

    def apply(self, now: float) -> None:
        """Store the choices, then write the file; or the file goes, then the choices."""
        if self.installed is not None:
            self.installed.installed_at = now
            self.installed.install()
        if self.changes_settings:
            if self.after is None:
                delete_file(self.file)
            else:
                replace_file(self.file, self.after)
        if self.installed is None:
            traces = own_files(self.state_directory, self.host)
            delete_traces(traces, self.state_directory)


def own_files(state_directory: str, host: str) -> list[str]:
    """Return the files of the state directory that installations of a host and its hooks made."""
    try:
        names = sorted(os.listdir(state_directory))
    except OSError:
        return []
    return [os.path.join(state_directory, name) for name in names if name.startswith(f"{host}.")]


def delete_traces(paths: Iterable[str], state_directory: str) -> None:
    """Delete files of the state directory, and the directory where nothing is left in it."""
    for path in paths:
        delete_file(path)
    with suppress(OSError):  # not empty: states of agents stay
        os.rmdir(state_directory)


def chosen_choices(host: str, state_directory: str, choices: Choices) -> InstalledChoices:
    """Return the stored choices of a host with what a person decided now.

    Raises:
        ConfigurationError: A choice is not allowed.
        StateError: The stored ones cannot be read.
    """
    installed = InstalledChoices.load(choices_path(state_directory, host))
    choose(installed, choices)
    return installed


def choose(installed: InstalledChoices, choices: Choices) -> None:
    """Take over what a person decided.

    Raises:
        ConfigurationError: A choice is not allowed.
    """
    if choices.audience is not None:
        installed.audience = check_choice("audience", choices.audience, AUDIENCES, "argument")
    if choices.context_limit_tokens is not None:
        installed.context_limit_tokens = choices.context_limit_tokens or None
    if choices.handoff_note is not None:
        if len(choices.handoff_note) > MAX_HANDOFF_NOTE_CHARS:
            allowed = f"at most {MAX_HANDOFF_NOTE_CHARS:,} characters"
            raise ConfigurationError("handoff_note", choices.handoff_note[:40] + "…", allowed)
        installed.handoff_note = choices.handoff_note or None
    if choices.critical_note is not None:
        installed.critical_note = check_critical_note(choices.critical_note)
    if choices.resident is not None:
        installed.resident_choice = choices.resident
    if choices.pins is not None:
        installed.pins = choices.pins
    given = {WARNING: choices.warning, CRITICAL: choices.critical}
    chosen = {name: ratio for name, ratio in given.items() if ratio is not None}
    installed.ladder = ladder_of(installed, chosen)
    installed.chosen_levels = [
        name for name in given if name in chosen or name in installed.chosen_levels
    ]
    _choose_enforcement(installed, choices)


def _choose_enforcement(installed: InstalledChoices, choices: Choices) -> None:
    level, dry_run = choices.enforce, choices.enforce_dry_run
    if level is not None:
        installed.enforce = None if level == NO_LEVEL else level
        installed.enforce_dry_run = bool(dry_run)
    elif dry_run is not None:
        installed.enforce_dry_run = dry_run
    if installed.enforce is None:
        if dry_run:
            raise ConfigurationError("enforce_dry_run", dry_run, "given with enforce")
        return
    obeyed = [rung.name for rung in installed.ladder.rungs if rung.action == FORCE_RETURN]
    if installed.enforce not in obeyed:
        allowed = f"{NO_LEVEL}, or a level that asks to return: {', '.join(obeyed)}"
        raise ConfigurationError("enforce", installed.enforce, allowed)


def ladder_of(installed: InstalledChoices, chosen: Mapping[str, float] | None = None) -> Ladder:
    """Return the ladder that an installation has: chosen rungs, else ``[levels]``, else defaults.

    Args:
        installed: The stored choices; what was chosen earlier stays chosen.
        chosen: The usage ratios that a person chooses now, by level.

    Raises:
        ConfigurationError: A ratio is out of range, is no whole percent, or does not rise.
    """
    stored, chosen = installed.ladder, chosen or {}
    kept = {rung.name: rung.ratio for rung in stored.rungs}
    if not chosen and not _is_of_an_installation(stored):
        return stored
    ratios: dict[str, float | None] = {**LADDERS["claude-code"]}
    ratios |= {name: ratio for name, (ratio, _) in SharedLevels().ratios.items()}
    # Levels that no person chose follow `[levels]` at each installation.
    ratios |= {name: kept[name] for name in installed.chosen_levels if name in kept}
    ratios |= chosen
    return Ladder.default(ratios[WARNING], ratios[CRITICAL], round_percent=True)


def _is_of_an_installation(ladder: Ladder) -> bool:
    ratios = [rung.ratio for rung in ladder.rungs]
    return (
        ladder.names[1:] == (WARNING, CRITICAL)
        and None not in ratios
        and (ladder == Ladder.default(*ratios, round_percent=True))
    )


def diff_text(path: str, before: bytes | None, after: bytes | None) -> str:
    """Return a unified diff between two contents of a file; None = no file."""
    shown = []
    for line in difflib.unified_diff(
        _lines(before),
        _lines(after),
        "/dev/null" if before is None else path,
        "/dev/null" if after is None else path,
    ):
        shown.append(line.rstrip("\r\n"))
        if not line.endswith("\n"):
            shown.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in shown)


def _lines(data: bytes | None) -> list[str]:
    *lines, last = (data or b"").decode().split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
