"""The commands that an installation writes into settings, and how they are recognised again."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATORS = frozenset("();<>|&")
RESIDENT = "resident"
"""Third argument of a script, where a resident may answer."""
_PYTHON = re.compile(r"(graal)?py[a-z]*[0-9.]*(\.exe)?", re.IGNORECASE)

_GROUP = "host"
"""The group of commands that may stand before the verb."""


class HookScript(NamedTuple):
    """A script of ultramon that settings of a host run."""

    folder: str
    """Of its host, below ``ultramon/hosts``."""
    name: str
    verb: tuple[str, ...]
    """What `ultramon` is called with to run the same."""
    launcher: str
    """File name of the launcher in the state directory that replaces it."""

    @property
    def end(self) -> str:
        """The end of its path, wherever the package is."""
        return os.path.join("ultramon", "hosts", self.folder, self.name)


class OurCommand(NamedTuple):
    """A command in settings that runs ultramon and nothing else."""

    program: str
    """The interpreter, or the `ultramon` program itself."""
    script: str | None
    """Path of ultramon's script as spelled; None when the program is `ultramon`."""
    choices_path: str | None
    """Path of the installed choices as spelled; None when none is given."""
    is_launcher: bool = False
    """Whether the program is a launcher, which names the rest in its text."""


def package_directory() -> str:
    """Return the directory that holds this package, links not followed: upgrades move targets."""
    return str(Path(os.path.abspath(__file__)).parents[3])


def script_path(script: HookScript, package: str | None = None) -> str:
    """Return the absolute path of a script.

    Args:
        script: The script.
        package: The directory that holds `ultramon`; None = that of this program.
    """
    return os.path.join(package or package_directory(), script.end)


def command_line(interpreter: str, script: str, installed: str, *more: str) -> str:
    """Return the shell command of a hook or status line, for where no launcher can be used.

    `more` are further arguments of the script.

    Without the tests in front, Python would leave with 2 where the script is gone, and 2 is what
    blocks tools and erases prompts: a package removed by hand must not do that.
    """
    run = shlex.join((interpreter, "-I", "-S", script, installed, *more))
    tests = f"[ ! -r {shlex.quote(script)} ] || [ ! -x {shlex.quote(interpreter)} ]"
    return f"{tests} || exec {run}"


def recognise(hook: object, script: HookScript) -> OurCommand | None:
    """Return what a hook or status line of ultramon runs; None = it is another tool's.

    The script or launcher decides, resolved and not as spelled, whatever arguments are around
    it. What runs a script is an interpreter by its name, or by the options that an installation
    gives it: an interpreter may have any name. A command that does more is another tool's.

    Args:
        hook: One entry of a ``hooks`` array, or the ``statusLine`` block, decoded.
        script: What it may run.
    """
    words = _own_words(_words(hook))
    if words is None:
        return None
    verb = list(script.verb)
    for at, word in enumerate(words):
        after = words[at + 1 :]
        if os.path.basename(word) in ("ultramon", "ultramon.exe"):
            called = after[1:] if after[:1] == [_GROUP] else after
            if called[: len(verb)] == verb:
                return OurCommand(expand(words[0]), None, None)
        path = _own_path(word, script)
        if path is not None:
            if at and not _is_interpreter(words[0], words[1:at]):
                return None
            if os.path.basename(path) == script.launcher:
                return OurCommand(path, None, None, is_launcher=True)
            return OurCommand(expand(words[0]), path, expand(after[0]) if after else None)
        if at and not word.startswith("-"):
            return None
    return None


def mentions(hook: object, script: HookScript) -> bool:
    """Return whether a command runs ultramon's, alone or among other things."""
    if any(_own_path(word, script) for word in _words(hook) or ()):
        return True
    text = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(text, str) and (
        script.end in text
        or script.launcher in text
        or " ".join(("ultramon", *script.verb)) in text
        or " ".join(("ultramon", _GROUP, *script.verb)) in text
    )


def expand(word: str) -> str:
    """Return a path with ``~`` and variables replaced, as the shell would."""
    # Quotes are gone from the word: what is there under its own name was not meant as a variable.
    return word if os.path.lexists(word) else os.path.expanduser(os.path.expandvars(word))


def _words(hook: object) -> list[str] | None:
    """Split a command as the shell would; operators become words of their own."""
    if not isinstance(hook, dict) or not isinstance(hook.get("command"), str):
        return None
    arguments = hook.get("args")
    if isinstance(arguments, list):
        return [hook["command"], *(word for word in arguments if isinstance(word, str))]
    lexer = shlex.shlex(hook["command"].strip(), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.whitespace = " \t"  # a line end separates commands, it stays visible
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return None


def _own_words(words: list[str] | None) -> list[str] | None:
    """Return the words of a simple command, without ultramon's tests, ``exec``, assignments."""
    if not words or any("\n" in word for word in words):
        return None
    while words[:2] == ["[", "!"] and words[4:6] == ["]", "||"]:
        words = words[6:]
    while words and (os.path.basename(words[0]) in ("exec", "env") or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words or any(word and _OPERATORS.issuperset(word) for word in words):
        return None
    # `python -m ultramon hook HOST` names no script, but runs the same.
    if "-m" in words[1:-1] and words[words.index("-m") + 1] == "ultramon":
        return words[words.index("-m") + 1 :]
    return words


def _is_interpreter(word: str, options: list[str]) -> bool:
    given = {letter for option in options for letter in option.removeprefix("-")}
    return bool(_PYTHON.fullmatch(os.path.basename(word))) or given >= {"I", "S"}


def _own_path(word: str, script: HookScript) -> str | None:
    """Return the path of ultramon's script or its launcher if a word names one.

    A launcher is known as spelled or where a link leads; a script stays as spelled.
    """
    path = expand(word)
    if not os.path.isabs(path):
        return None
    real = os.path.realpath(path)
    for found in (path, real):
        if os.path.basename(found) == script.launcher:
            return found
    is_script = path.endswith(".py") and (
        real.endswith(os.sep + script.end) or real == os.path.realpath(script_path(script))
    )
    return path if is_script else None
