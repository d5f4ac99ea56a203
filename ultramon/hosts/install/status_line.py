"""A status line in a settings file of a host: ultramon's, and what it replaces and carries.

Never on a hook's path.
"""

from __future__ import annotations

from typing import Any

from ultramon.hosts.install.hook_commands import HookScript, OurCommand, mentions, recognise
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation
from ultramon.hosts.install.plans import Choices
from ultramon.hosts.installed_choices import (
    STATUS_LINE_PARTS,
    STATUS_LINES,
    InstalledChoices,
    check_choice,
    check_parts,
)

STATUS_LINE = "statusLine"
REFRESH_SECONDS = 10
"""How often ultramon's line is drawn while nothing happens: no hook reports an interruption."""
_ANOTHER = "is another one than the one that ultramon's carries already for other settings"


class StatusLineSettings(HookSettings):
    """One settings file with hooks and a status line.

    Attributes:
        line_script: What ultramon's status line runs.
    """

    line_script: HookScript
    own_keys: tuple[str, ...] = (STATUS_LINE,)

    def our_status_line(self) -> OurCommand | None:
        """Return what the status line runs if it is ultramon's."""
        return recognise(self.get(STATUS_LINE), self.line_script)

    def holds_ours(self) -> bool:
        """Return whether anything in the file is ultramon's."""
        return super().holds_ours() or self.our_status_line() is not None

    def put_status_line(self, command: str) -> None:
        """Make the status line run a command; the rest of its block stays."""
        current = self.get(STATUS_LINE)
        block: dict[str, object] = {"type": "command", "command": command}
        if not self.document.has(STATUS_LINE):
            # Where another tool has one, that is not run more often than its owner wanted.
            self.document.add((), {**block, "refreshInterval": REFRESH_SECONDS}, STATUS_LINE)
        elif not isinstance(current, dict) or "command" not in current or "args" in current:
            self.document.replace((STATUS_LINE,), block)
        elif current.get("command") != command:
            self.document.replace((STATUS_LINE, "command"), command)

    def restore_status_line(self, before: Any, *, existed: bool) -> None:
        """Put back what the status line ran before ultramon's.

        Args:
            before: The block as it was.
            existed: Whether there was one; else ultramon's is taken out.
        """
        if self.our_status_line() is None:
            return
        if not existed:
            self.document.remove((STATUS_LINE,))
        elif isinstance(before, dict) and isinstance(before.get("command"), str):
            # What a person changed beside it since, such as the padding, stays.
            self.document.replace((STATUS_LINE, "command"), before["command"])
        else:
            self.document.replace((STATUS_LINE,), before)

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Take all of ultramon's entries out; the status line that they replaced comes back."""
        super().take_out(record, before)
        if not record:
            remember_status_line(record, before)
        self.restore_status_line(record.get(STATUS_LINE), existed=STATUS_LINE in record)

    def remember_replaced(self, record: dict[str, Any], before: HookSettings) -> None:
        """Note the status line that ultramon's replaced."""
        if STATUS_LINE not in record:
            remember_status_line(record, before)


def remember_status_line(record: dict[str, Any], settings: HookSettings) -> None:
    """Note the block in the settings; without one nothing is noted."""
    record.pop(STATUS_LINE, None)
    if settings.document.has(STATUS_LINE):
        record[STATUS_LINE] = settings.get(STATUS_LINE)


def plan_status_line(
    plan: Installation,
    settings: StatusLineSettings,
    found: Any,
    chosen: str | None,
    *,
    record: dict[str, Any],
    carries_others: bool,
) -> bool:
    """Put ultramon's in, and remember the one that it replaces.

    Args:
        plan: The installation, whose choices say what is shown.
        settings: The file that holds the line.
        found: The line that the host would show without ultramon's; None = none.
        chosen: What a person chose now, one of `STATUS_LINES`; None = nothing.
        record: The note of that file.
        carries_others: Whether other files may have a line that ultramon's carries.

    Returns:
        Whether it carries another tool's line from now on.

    Raises:
        ConfigurationError: The choice is not allowed.
    """
    installed = plan.installed
    if chosen is not None:
        check_choice("status_line", chosen, STATUS_LINES, "argument")
    show = chosen or (installed.status_line_show if installed.installed_at is not None else None)
    if show == "none":
        settings.restore_status_line(record.get(STATUS_LINE), existed=STATUS_LINE in record)
        installed.status_line_show, installed.status_line_chained = "none", None
        return False
    is_new = found is not None and found != installed.status_line_chained
    if is_new:
        problem = _why_not_chained(found, settings.line_script)
        if installed.status_line_chained is not None and carries_others:
            problem = problem or _ANOTHER
        if problem is not None:
            plan.warnings.append(f"the status line {problem}; it is left as it is")
            return False
        installed.status_line_chained = found
        show = chosen or ("both" if show == "both" else "chained")
    installed.status_line_show = show or "own"
    if settings.our_status_line() is None:
        remember_status_line(record, settings)
    settings.put_status_line(plan.command(settings.line_script))
    return is_new


def _why_not_chained(line: object, script: HookScript) -> str | None:
    if mentions(line, script):
        return "runs ultramon's among other things, and would run itself if it were chained"
    if not isinstance(line, dict) or line.get("type") != "command" or "args" in line:
        return "is of a kind that cannot be chained"
    if not isinstance(line.get("command"), str):
        return "is of a kind that cannot be chained"
    return None


def choose_parts(installed: InstalledChoices, choices: Choices) -> None:
    """Take over which parts of ultramon's line a person wants; raises ConfigurationError."""
    if (parts := choices.status_line_parts) is not None:
        names = [name.strip() for name in parts.split(",")] if parts else list(STATUS_LINE_PARTS)
        installed.status_line_parts = check_parts(names, "argument")
