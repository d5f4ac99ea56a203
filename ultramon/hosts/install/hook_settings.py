"""A host's file with hooks in it: ultramon's entries among those of others, and replacing it.

Several hosts have the shape of Claude Code: of each event an array of matchers with hooks. Only
ultramon's own entries are ever touched; everything else keeps its bytes. Never on a hook's path.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ultramon.errors import StateCorruptError, StateWriteError
from ultramon.hosts.install.hook_commands import HookScript, OurCommand, mentions, recognise
from ultramon.hosts.install.json_edit import JsonText, Path, comparable
from ultramon.system.files import NewFile, close_quietly, refused, sync_directory
from ultramon.system.ids import random_hex

MAX_SETTINGS_BYTES = 1 << 20
ASYNC = "async"
"""The host's name for a hook that it does not wait for; one that does not know it waits."""
_ADVICE = "nothing was changed; mend the file and try again"
_BOM = "\ufeff"
_NEW_FILE_MODE = 0o600


class OurHook(NamedTuple):
    """Where a hook of ultramon is in a settings file."""

    event: str
    path: Path
    """From the document to the hook."""
    matcher: str
    """Empty where every occasion matches."""
    runs: object
    """What it starts, often an `OurCommand`, or where its request goes."""


class HookSettings:
    """One file with hooks in the shape of Claude Code, as it is and as it shall be.

    Attributes:
        path: As the host names it.
        target: The file itself, links followed.
        original: Its bytes; None when there is no file.
        mode: Its permissions; those of a new file where there is none.
        new_mode: The permissions that it shall have; None = they stay.
        document: Its new content, to be edited.
        secrets: Texts in it that are not to be shown.
        script: What ultramon's hooks run.
        events: Those that ultramon needs, in the order in which an installation writes them.
        enforcing_events: Those that it needs beyond them where returns are enforced.
        own_keys: Members of the document, beside ``hooks``, that may not be there twice.
        may_have_comments: Whether the host skips comments in it; they stay.

    Args:
        path: The settings file; it may be missing.
        data: Take these bytes for its content instead of reading it.

    Raises:
        StateCorruptError: It is there and no settings file; names the line.
        OSError: The system refused to read it.
    """

    script: HookScript
    events: tuple[str, ...]
    enforcing_events: tuple[str, ...] = ()
    own_keys: tuple[str, ...] = ()
    may_have_comments = False

    def __init__(self, path: str, data: bytes | None = None) -> None:
        self.path = os.path.abspath(path)
        self.target = os.path.realpath(self.path)
        self.mode = _NEW_FILE_MODE
        self.new_mode: int | None = None
        self.secrets: set[str] = set()
        self.original = self._read() if data is None else data
        self._mark, self.document = self._decode(self.original or b"")
        self._check_hooks()

    def _read(self) -> bytes | None:
        try:
            # A pipe without a writer would block for ever.
            fd = os.open(self.target, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StateCorruptError(self.path, "not a regular file", _ADVICE)
            self.mode = stat.S_IMODE(found.st_mode)
            data = b""
            while len(data) <= MAX_SETTINGS_BYTES and (chunk := os.read(fd, MAX_SETTINGS_BYTES)):
                data += chunk
        finally:
            close_quietly(fd)
        if len(data) > MAX_SETTINGS_BYTES:
            reason = f"is larger than {MAX_SETTINGS_BYTES:,} bytes"
            raise StateCorruptError(self.path, reason, "nothing was changed; is it the right file?")
        return data

    def _decode(self, data: bytes) -> tuple[str, JsonText]:
        try:
            text = data.decode("utf-8")
            # JSON allows no byte order mark, and some editors write one: it stays.
            mark = _BOM if text.startswith(_BOM) else ""
            text = text.removeprefix(_BOM)
            # The host takes an empty file for an empty object.
            text = text if text.strip() else "{}\n"
            return mark, JsonText(text, has_comments=self.may_have_comments)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            reason = f"line {line}: not UTF-8"
        except json.JSONDecodeError as error:
            reason = f"line {error.lineno} column {error.colno}: {error.msg}"
        except ValueError as error:
            reason = str(error)
        raise StateCorruptError(self.path, reason, _ADVICE)

    def _check_hooks(self) -> None:
        for key in self.own_keys:
            self.get(key)  # refuses a key that is there twice
        hooks = self.get("hooks")
        if hooks is None and not self.document.has("hooks"):
            return
        if not isinstance(hooks, dict):
            raise StateCorruptError(self.path, "hooks is not an object", _ADVICE)
        for event, entries in hooks.items():
            self.get("hooks", event)
            if not isinstance(entries, list):
                raise StateCorruptError(self.path, f"hooks.{event} is not an array", _ADVICE)

    def recognise(self, hook: object) -> object:
        """Return what a hook of ultramon runs; None = it is another tool's."""
        return self.recognise_command(hook)

    def recognise_command(self, hook: object) -> OurCommand | None:
        """Return what a hook of ultramon that is a command runs; None = it is another one."""
        return recognise(hook, self.script)

    def get(self, *path: str | int) -> Any:
        """Return the decoded value at a path; None where there is none.

        Raises:
            StateCorruptError: A key on the path is twice in its object.
        """
        try:
            return self.document.get(*path)
        except ValueError as error:
            raise StateCorruptError(self.path, str(error), _ADVICE) from error

    @property
    def data(self) -> bytes:
        """The bytes that the file shall hold."""
        return (self._mark + self.document.text).encode("utf-8")

    def our_hooks(self) -> list[OurHook]:
        """Return where ultramon's hooks are, in order."""
        return [
            OurHook(str(path[1]), path, matcher, runs)
            for path, matcher, hook in self._hooks()
            if (runs := self.recognise(hook)) is not None
        ]

    def other_commands(self) -> list[str]:
        """Return the commands of other tools' hooks, in order, each once."""
        commands = [
            hook["command"]
            for _, _, hook in self._hooks()
            if isinstance(hook, dict)
            and isinstance(hook.get("command"), str)
            and self.recognise_command(hook) is None
        ]
        return list(dict.fromkeys(commands))

    def wrapped_hooks(self) -> list[str]:
        """Return the commands that run ultramon's hook among other things; they are left alone."""
        return [
            hook["command"]
            for _, _, hook in self._hooks()
            if mentions(hook, self.script) and self.recognise_command(hook) is None
        ]

    def _hooks(self) -> Iterator[tuple[Path, str, Any]]:
        """Give every hook with its path and matcher, passing over what the host cannot read."""
        for event, entries in (self.get("hooks") or {}).items():
            for i, entry in enumerate(entries):
                hooks = entry.get("hooks") if isinstance(entry, dict) else None
                for j, hook in enumerate(hooks if isinstance(hooks, list) else ()):
                    matcher = entry.get("matcher")
                    matcher = matcher if isinstance(matcher, str) and matcher != "*" else ""
                    yield ("hooks", event, i, "hooks", j), matcher, hook

    def holds_ours(self) -> bool:
        """Return whether anything in the file is ultramon's."""
        return bool(self.our_hooks())

    def put_entries(self, entries: dict[str, dict[str, Any]]) -> None:
        """Put ultramon's hooks into the file, once for each event.

        Args:
            entries: What the array of each event shall hold, by event.
        """
        if not self.document.has("hooks"):
            self.document.add((), {}, "hooks")
        self._drop_hooks(self._superfluous(), kept=frozenset(self.events))
        for event, entry in entries.items():
            mine = [hook for hook in self.our_hooks() if hook.event == event]
            for hook in mine:
                self._update(hook.path, entry["hooks"][0])
            if mine:
                continue
            if self.document.has("hooks", event):
                self.document.add(("hooks", event), entry)
            else:
                self.document.add(("hooks",), [entry], event)

    def _update(self, path: Path, wanted: dict[str, Any]) -> None:
        current = self.get(*path)
        updated = wanted
        if "args" not in current and current.get("type", "command") == wanted["type"]:
            # What a person changed beside it, such as the timeout, stays.
            updated = dict(current)
            if current.get(ASYNC) is not False:
                updated.pop(ASYNC, None)  # of an event whose answer counts it would be lost
            else:
                wanted = {name: one for name, one in wanted.items() if name != ASYNC}
            for name, value in wanted.items():
                old = current.get(name)
                if isinstance(value, dict) and isinstance(old, dict):
                    updated[name] = {**old, **value}
                elif name != "timeout":
                    updated[name] = value
        if updated != current:
            self.document.replace(path, updated)

    def _superfluous(self) -> list[OurHook]:
        """Return the hooks of events not needed any more, and all but one of doubled ones."""
        seen: set[tuple[str, str]] = set()
        superfluous = []
        for hook in self.our_hooks():
            if hook.event not in self.events or (hook.event, hook.matcher) in seen:
                superfluous.append(hook)
            seen.add((hook.event, hook.matcher))
        return superfluous

    def drop_hooks(self, kept: frozenset[str]) -> None:
        """Take ultramon's hooks out, and what is empty without them.

        Args:
            kept: Names of events, and ``hooks`` itself, that stay even when empty.
        """
        hooks = self.our_hooks()
        self._drop_hooks(hooks, kept)
        if hooks and not self.get("hooks") and "hooks" not in kept:
            self.document.remove(("hooks",))

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Take all of ultramon's entries out, and put back what they replaced.

        Args:
            record: The note of the installation; empty = there is none.
            before: The file as it was before the first installation.
        """
        kept = set(before.get("hooks") or ())
        if before.document.has("hooks"):
            kept.add("hooks")
        self.drop_hooks(frozenset(kept))

    def remember_replaced(self, record: dict[str, Any], before: HookSettings) -> None:
        """Note what ultramon's entries replaced, where an earlier note is lost.

        Hooks are put beside others and replace nothing.

        Args:
            record: The note of the installation.
            before: The file as it was before the first installation.
        """

    def _drop_hooks(self, hooks: list[OurHook], kept: frozenset[str]) -> None:
        # From the end: a removal moves the places behind it.
        for hook in reversed(hooks):
            self.document.remove(hook.path)
            if not self.get(*hook.path[:-1]):
                self.document.remove(hook.path[:3])
            if not self.get(*hook.path[:2]) and hook.event not in kept:
                self.document.remove(hook.path[:2])

    def says_the_same_as(self, data: bytes) -> bool:
        """Return whether the document means what these bytes mean, however they are written."""
        _, other = self._decode(data)
        mine, others = (
            comparable(one.text, has_comments=self.may_have_comments)
            for one in (self.document, other)
        )
        return mine == others

    def save(self, data: bytes) -> None:
        """Replace the file atomically; links to it and its mode stay. Missing folders are made.

        Raises:
            StateWriteError: It changed since it was read, or the system refused; it is as it was.
        """
        temporary = f"{self.target}.{random_hex(6)}.tmp"
        try:
            os.makedirs(os.path.dirname(self.target), mode=0o700, exist_ok=True)
            with NewFile(temporary, self.path, data):
                self._copy_owner_and_mode(temporary)
                self._check_unchanged()
                os.replace(temporary, self.target)
            sync_directory(os.path.dirname(self.target))
        except OSError as error:
            raise refused(self.path, "cannot be written", error) from error

    def delete(self) -> None:
        """Delete the file.

        Raises:
            StateWriteError: It changed since it was read, or the system refused.
        """
        try:
            self._check_unchanged()
            os.unlink(self.target)
        except OSError as error:
            raise refused(self.path, "cannot be deleted", error) from error

    def _check_unchanged(self) -> None:
        if self._read() != self.original:
            reason = "changed meanwhile, nothing was written; run the command again"
            raise StateWriteError(self.path, reason)

    @property
    def changes_mode(self) -> bool:
        """Whether the permissions of the file will be others."""
        return self.original is not None and self.new_mode not in (None, self.mode)

    def save_mode(self) -> None:
        """Give the file its new permissions.

        Raises:
            StateWriteError: The system refused.
        """
        if self.new_mode is None:
            return
        try:
            os.chmod(self.target, self.new_mode)
        except OSError as error:
            raise refused(self.path, "cannot be made private", error) from error

    def _copy_owner_and_mode(self, temporary: str) -> None:
        os.chmod(temporary, self.mode if self.new_mode is None else self.new_mode)
        if self.original is not None and hasattr(os, "chown"):
            found = os.stat(self.target)
            # Under sudo the file would become root's; only root may give files away.
            with suppress(PermissionError):
                os.chown(temporary, found.st_uid, found.st_gid)
