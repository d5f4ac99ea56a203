"""Commands that a person has run at an event: their settings, and how their arguments are made.

Pure rules. No shell reads a command, and no value of an agent begins an option of it.
`ultramon.fleet.event_commands` runs them.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.ladder import CRITICAL, WARNING
from ultramon.errors import ConfigurationError
from ultramon.notices.crossings import PLAN
from ultramon.state.event_words import event_words
from ultramon.state.record import short_id
from ultramon.state.usage_percent import exact_ratio, usage_percent, whole_percent
from ultramon.system.settings import (
    REQUIRED,
    Kind,
    Setting,
    did_you_mean,
    number,
    read_settings,
    read_table,
    whole_number,
)
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.state.record import StateRecord

WAITING, COMPACTED, ENDED, BUDGET = "waiting", "compacted", "ended", "budget"
EVENTS = {
    WARNING: "a window has reached the level that asks for a handoff to be prepared",
    CRITICAL: "a window has reached the level that asks the agent to return",
    WAITING: "a session waits for a person: for a permission, or for an answer",
    COMPACTED: "a window was compacted",
    ENDED: "an agent ended, was lost, or did not return in time",
    BUDGET: "a budget has reached a level",
    PLAN: "a limit of a plan has reached a level",
}
"""The names of the tables below ``[on]``, with what has happened."""
PLACEHOLDERS = {
    "event": "the name of the table",
    "label": "the agent's label, else its short id; of a plan the account, of a budget its name",
    "agent": "the agent's id",
    "percent": "how full the window is, or how much of the limit is used, in whole percents",
    "tokens": "the tokens in the window",
    "limit": "the context limit in tokens",
    "level": "the level that is reached",
    "reason": "`permission` or `answer`; how it ended; what began the new window",
    "project": "the directory in which the agent works",
    "host": "the program that the agent runs in, such as `claude-code`",
    "run": "the agent's run",
    "text": "a sentence that says it all",
}
"""What stands for a value in an argument, with its meaning; an unknown value is ``?``."""
UNKNOWN = "?"
MOST_SECONDS = 60.0
MOST_PER_MINUTE = 60
_MOST_ARGUMENTS = 64
_MOST_ARGUMENT_CHARS = 2_000
_MOST_VALUE_CHARS = 300
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_COMPACTIONS = ("compaction", "fall")
_ENDS = ("agent_stopped", "agent_lost", "agent_expired")
_LEVEL_OF_ACTION = {"prepare_handoff": WARNING, "force_return": CRITICAL}
# curl reads a file for a value that begins with @ or <, many programs take + for an option.
_MEANS_MORE = ("-", "+", "@", "<")
# These run their first operand: a file, or with -c a program.
_SHELL = re.compile(
    r"(?:a|ba|c|da|fi|hu|k|lk|mk|o|ok|pdk|po|rba|rk|rz|tc|xon|ya|z)?sh[0-9.]*|python[0-9.]*"
)
# These run their first operand too; the options with which they take a program differ.
_INTERPRETER = re.compile(
    r"(?:[a-z-]*awk|env|expect|julia|lua|luajit|node|nodejs|osascript|perl|php|Rscript|ruby|tclsh"
    r"|wish)[0-9.]*"
)
# These run, or hand to a shell, whatever follows.
_RUNS_ALL = {
    "bun", "cmd", "deno", "eval", "make", "mosh", "mysql", "npx", "parallel", "pipx", "powershell",
    "psql", "pwsh", "rsh", "screen", "sed", "sqlite3", "ssh", "su", "tmux", "uvx", "watch", "xargs",
}  # fmt: skip
_TEXT_OPTION = re.compile(
    r"-[A-Za-z]{0,2}c[A-Za-z]{0,2}|--?(?:command|eval|exec|execute|split-string)"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def _are_arguments(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MOST_ARGUMENTS
        and all(
            isinstance(one, str) and len(one) <= _MOST_ARGUMENT_CHARS and "\0" not in one
            for one in value
        )
    )


COMMAND_SETTINGS = {
    "run": Setting(
        Kind("a program and its arguments, a list of texts", _are_arguments),
        REQUIRED,
        "The program, by name or absolute path, and its arguments with"
        " [placeholders](#commands-table-on). No shell reads them.",
    ),
    "seconds": Setting(
        number(
            f"seconds above 0, at most {MOST_SECONDS:g}",
            lambda value: 0 < value <= MOST_SECONDS,
            "seconds",
        ),
        10.0,
        "After these the program is killed, with what it started.",
    ),
    "per_minute": Setting(
        whole_number(1, MOST_PER_MINUTE),
        6,
        "How often it is run within a minute at most; further events run nothing.",
    ),
    "children": Setting(
        Kind("true or false", lambda value: isinstance(value, bool)),
        False,
        "Whether it is run for subagents too, and for other agents that have a parent.",
    ),
}


class EventCommand(NamedTuple):
    """One command of the settings; see `COMMAND_SETTINGS`."""

    event: str
    """One of `EVENTS`."""
    run: tuple[str, ...]
    seconds: float
    per_minute: int
    children: bool

    @property
    def program(self) -> str:
        """The program, for people."""
        return os.path.basename(self.run[0])

    def arguments(self, values: Mapping[str, str]) -> list[str]:
        """Return the program and its arguments.

        A value is one line of printable text, and stays within one argument. Where it begins an
        argument, or follows a ``=``, and its first character could mean an option or a file to the
        program (``-``, ``+``, ``@``, ``<``), a blank stands before it.

        Args:
            values: By placeholder; a missing or empty one is `UNKNOWN`.
        """
        return [os.path.expanduser(self.run[0]), *(_filled(one, values) for one in self.run[1:])]


def _filled(argument: str, values: Mapping[str, str]) -> str:
    filled, end = "", 0
    for found in _PLACEHOLDER.finditer(argument):
        filled += argument[end : found.start()]
        value = _one_line(values.get(found[1], ""))
        if (not filled or filled.endswith("=")) and value.startswith(_MEANS_MORE):
            filled += " "
        filled += value
        end = found.end()
    return filled + argument[end:]


def _one_line(value: str) -> str:
    return sanitize(" ".join(value.split()), max_chars=_MOST_VALUE_CHARS) or UNKNOWN


def read_commands() -> tuple[dict[str, EventCommand], str]:
    """Return the commands of ``[on]`` by event, and the path of their file; both empty without.

    None of a project that is not trusted: its author would run programs.

    Raises:
        ConfigurationError: A setting is wrong; names it, the file and what is allowed.
    """
    table, path = read_table("on")
    return {name: _command(name, value, path) for name, value in table.items()}, path


def _command(name: str, value: Any, path: str) -> EventCommand:
    title = f"on.{name}"
    if name not in EVENTS:
        allowed = f"one of {', '.join(EVENTS)}{did_you_mean(name, EVENTS)}"
        raise ConfigurationError("on", name, allowed, path)
    if not isinstance(value, dict) or "run" not in value:
        allowed = f'a table: [{title}], with run = ["PROGRAM", …]'
        raise ConfigurationError(title, value, allowed, path)
    found = read_settings(value, COMMAND_SETTINGS, path, title)
    run = tuple(found.pop("run"))
    _check_run(f"{title}.run", run, path)
    return EventCommand(name, run, **found)


def _check_run(name: str, run: tuple[str, ...], path: str) -> None:
    program = run[0]
    # A relative path would depend on where the process that runs it was started.
    is_fixed = "/" not in program or os.path.isabs(os.path.expanduser(program))
    if not program.strip() or program.startswith("-") or not is_fixed or _used(program):
        allowed = "the name of a program or its absolute path, without a placeholder"
        raise ConfigurationError(name, program, allowed, path)
    for used in (one for argument in run for one in _used(argument)):
        if used not in PLACEHOLDERS:
            allowed = f"one of {', '.join(PLACEHOLDERS)}{did_you_mean(used, PLACEHOLDERS)}"
            raise ConfigurationError(f"{name} placeholder", used, allowed, path)
    if found := _run_as_program(run):
        argument, before = found
        allowed = (
            f"without a placeholder behind {before}, which may run it as a program: give it to a"
            ' fixed one, as in ["sh", "-c", "notify-send \\"$1\\"", "sh", "{label}"]'
        )
        raise ConfigurationError(name, argument, allowed, path)


def _run_as_program(run: tuple[str, ...]) -> tuple[str, str] | None:
    """Return an argument with a placeholder that a program might run, and behind what it stands.

    Behind a shell or interpreter a placeholder is accepted only once what is run is fixed: which
    of their options take an argument, and which runs it, is not known here.
    """
    for before, argument in pairwise(run):
        if used := _PLACEHOLDER.search(argument):
            for option in (before, argument[: used.start()].rstrip("=")):
                if _TEXT_OPTION.fullmatch(option):
                    return argument, option
    for at, argument in enumerate(run):
        name = os.path.basename(argument).removesuffix(".exe")
        rest = list(run[at + 1 :])
        is_shell = _SHELL.fullmatch(name) is not None
        is_inline = is_shell and rest[:1] == ["-c"]
        if name not in _RUNS_ALL:
            if not is_shell and _INTERPRETER.fullmatch(name) is None:
                continue
            if is_shell and rest[:1] in (["-c"], ["-m"]):
                del rest[0]
            while name == "env" and rest and _ASSIGNMENT.fullmatch(rest[0]):
                del rest[0]
            if rest and not rest[0].startswith(("-", "+")) and not _used(rest[0]):
                if is_inline:
                    break  # all that follows is the script's
                continue
        if runs := next((one for one in rest if _used(one)), None):
            return runs, argument
    return None


def _used(argument: str) -> list[str]:
    return _PLACEHOLDER.findall(argument)


def name_of_event(event: Mapping[str, Any]) -> str | None:
    """Return which of `EVENTS` an event of the journal is; None = none of them.

    A rung that has a name of its own counts by its action.
    """
    kind = event.get("type")
    if kind == "context_threshold_reached":
        level = event.get("level")
        if level in (WARNING, CRITICAL):
            return str(level)
        return _LEVEL_OF_ACTION.get(str(event.get("action")))
    if kind == "context_epoch_started":
        return COMPACTED if event.get("reason") in _COMPACTIONS else None
    if kind in _ENDS:
        return ENDED
    return {"budget_threshold_reached": BUDGET, "plan_threshold_reached": PLAN}.get(str(kind))


def values_of_event(
    name: str, event: Mapping[str, Any], record: StateRecord | None
) -> dict[str, str]:
    """Return the values of the placeholders for an event of the journal.

    Args:
        name: As `name_of_event` returned it.
        event: The event.
        record: The state of its agent; None = it has none.
    """
    known = {} if record is None else _values_of_agent(record)
    label = known.get("label") or event.get("budget") or event.get("account") or event["agentId"]
    percent, words = _percent(event), event_words(dict(event))
    if name in (WARNING, CRITICAL) and percent:
        words = f"{event.get('level')}, {percent} % of its context window is used"
    elif name in (COMPACTED, ENDED):
        words = ", ".join(filter(None, (name, words)))
    own = {
        "event": name,
        "label": label,
        "agent": event["agentId"],
        "run": event.get("run"),
        "host": event.get("host"),
        "level": event.get("level"),
        "reason": event.get("reason") or event.get("outcome"),
        "percent": percent,
        "tokens": _number(event.get("tokens")),
        "limit": _number(event.get("contextLimit")),
        "text": _sentence(label, words),
    }
    return known | {key: str(value) for key, value in own.items() if value not in (None, "")}


def _sentence(label: str, words: str) -> str:
    """Return what is said of an agent; a label may be a prompt that ends as a sentence."""
    return f"{label.rstrip(' .:;,')}: {words}"


def values_of_wait(record: StateRecord, reason: str) -> dict[str, str]:
    """Return the values of the placeholders for a session that waits for a person.

    Args:
        record: Its state.
        reason: ``permission`` or ``answer``.
    """
    known = _values_of_agent(record)
    an = "an answer" if reason == "answer" else f"a {reason}"
    text = _sentence(known["label"], f"waits for {an}")
    return known | {"event": WAITING, "reason": reason, "text": text}


def sample_values(name: str) -> dict[str, str]:
    """Return values with which a command can be tried.

    Args:
        name: One of `EVENTS`.
    """
    values = dict.fromkeys(PLACEHOLDERS, "")
    values |= {
        "event": name,
        "label": "ultramon test",
        "agent": "ultramon-test",
        "percent": "88",
        "tokens": "176000",
        "limit": "200000",
        "level": WARNING if name == WARNING else CRITICAL,
        "reason": "permission" if name == WAITING else "test",
        "project": os.path.expanduser("~"),
        "host": "claude-code",
        "run": "default",
        "text": f"ultramon test: {EVENTS[name]}",
    }
    return values


def _values_of_agent(record: StateRecord) -> dict[str, str]:
    percent = usage_percent(record)
    return {
        "label": record.label or short_id(record),
        "agent": record.agent_id,
        "percent": "" if percent is None else str(percent),
        "tokens": "" if percent is None else str(record.estimated_tokens),
        "limit": _number(record.context_limit),
        "level": record.threshold_status or "",
        "project": record.cwd or "",
        "host": record.host,
        "run": record.run,
    }


def _percent(event: Mapping[str, Any]) -> str:
    ratio, rounds = event.get("usageRatio"), event.get("roundPercent") is True
    if isinstance(ratio, int | float):
        ratio = exact_ratio(ratio, event.get("tokens"), event.get("contextLimit"))
    else:
        ratio = event.get("usedRatio")
    return str(whole_percent(ratio, rounds=rounds)) if isinstance(ratio, int | float) else ""


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else ""
