"""Rules that a person pins, so that a compaction cannot lose them.

Standard library only; loaded after a compaction, where pins were chosen. One small file
of the state directory holds the pins of all projects and sessions. They are the user's: nothing but
`ultramon host pin` deletes one.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError, StateCorruptError, StateError
from ultramon.state.prompt_text import RULES_HEADING
from ultramon.system import compact_json
from ultramon.system.files import (
    make_private_directory,
    open_private,
    read_private_file,
    read_shared_file,
    replace_file,
)
from ultramon.system.locks import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

SCHEMA = 1
MAX_PINS = 50
"""The most pins of one project or session."""
MAX_PIN_CHARS = 4_000
MAX_PINNED_FILE_BYTES = 64 * 1024
MAX_RULES_BYTES = 8_000
"""The size of all rules that a conversation is given back: some 2,000 tokens."""
UNREADABLE = "The pinned rules cannot be read: `ultramon host pin --list` says why."
_NAME = "pins.json"
_LOCK_SECONDS = 5.0
_MIN_RULE_BYTES = 200


class Pin:
    """One rule: a text, or a file whose content is read whenever it is needed.

    Attributes:
        owner: The project's directory, or the session.
        text: The text; None for a file.
        file: The path of the file; None for a text.
    """

    __slots__ = ("file", "owner", "text")

    def __init__(self, owner: str, text: str | None, file: str | None) -> None:
        self.owner = owner
        self.text = text
        self.file = file

    def read(self) -> str:
        """Return the rule, word for word.

        Raises:
            OSError: The file cannot be read.
            StateCorruptError: It is no regular file, or larger than 64 KiB.
        """
        if self.file is None:
            return self.text or ""
        return read_shared_file(self.file, MAX_PINNED_FILE_BYTES).decode("utf-8", "replace")

    def to_json(self) -> dict[str, str]:
        """Return the pin as the file of pins holds it."""
        return {"text": self.text or ""} if self.file is None else {"file": self.file}


class Pins:
    """The file of pins.

    Args:
        state_directory: The state directory.
    """

    def __init__(self, state_directory: str) -> None:
        self._directory = os.path.abspath(state_directory)
        self.path = os.path.join(self._directory, _NAME)

    def of(self, project: str | None, session_ids: Iterable[str] = ()) -> list[Pin]:
        """Return the pins that hold for a session: of its project and folders around it, its own.

        Args:
            project: The project's directory; None = only those of sessions.
            session_ids: The session, and those that it continues.

        Raises:
            StateCorruptError: The file is not what `ultramon host pin` wrote.
            OSError: The system refused to read it.
        """
        stored = self._load()
        folders: list[str] = []
        folder = None if project is None else os.path.realpath(project)
        # From the outermost folder inwards: the nearest rules are read last.
        while folder is not None:
            folders.insert(0, folder)
            above = os.path.dirname(folder)
            folder = None if above == folder else above
        found = [pin for folder in folders for pin in _pins(stored["projects"], folder)]
        return found + [pin for name in session_ids for pin in _pins(stored["sessions"], name)]

    def stored(self, owner: str, *, is_session: bool) -> list[Pin]:
        """Return the pins of one project or session alone; raises as `of`."""
        stored = self._load()
        if is_session:
            return _pins(stored["sessions"], owner)
        return _pins(stored["projects"], os.path.realpath(owner))

    def add(self, pin: Pin, *, is_session: bool) -> int:
        """Append a pin; return its number.

        Raises:
            ConfigurationError: It is empty or too long, or there are too many.
            StateError: The file cannot be read or written.
        """
        if pin.text is not None and not 0 < len(pin.text.strip()) <= len(pin.text) <= MAX_PIN_CHARS:
            allowed = f"1 to {MAX_PIN_CHARS:,} characters"
            raise ConfigurationError("pin", f"{pin.text[:40]}…", allowed, "argument")
        pin.read()  # a file that cannot be read is refused now, not at the next compaction

        def append(pins: list[Any]) -> None:
            if len(pins) >= MAX_PINS:
                raise ConfigurationError("pins", len(pins) + 1, f"at most {MAX_PINS}", "argument")
            pins.append(pin.to_json())

        return len(self._change(pin.owner, append, is_session=is_session))

    def remove(self, owner: str, number: int, *, is_session: bool) -> None:
        """Delete one pin.

        Raises:
            ConfigurationError: There is none of that number.
            StateError: The file cannot be read or written.
        """

        def delete(pins: list[Any]) -> None:
            if not 0 < number <= len(pins):
                allowed = f"1 to {len(pins)}" if pins else "nothing: there are no pins"
                raise ConfigurationError("remove", number, allowed, "argument")
            del pins[number - 1]

        self._change(owner, delete, is_session=is_session)

    def _change(self, owner: str, step: Any, *, is_session: bool) -> list[Any]:
        make_private_directory(self._directory)
        with Lock(f"{self.path}.lock", open_private, _LOCK_SECONDS):
            stored = self._load()
            kind = stored["sessions" if is_session else "projects"]
            # A project is one folder, whatever links its path goes through.
            name = owner if is_session else os.path.realpath(owner)
            pins = [pin.to_json() for pin in _pins(kind, name)]
            step(pins)
            kind[name] = pins
            if not pins:
                del kind[name]
            replace_file(self.path, compact_json.dumps(stored).encode("ascii") + b"\n")
        return pins

    def _load(self) -> dict[str, Any]:
        try:
            data, _ = read_private_file(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {"schema": SCHEMA, "projects": {}, "sessions": {}}
        try:
            stored = compact_json.loads(data)
            if stored["schema"] != SCHEMA:
                raise ValueError(f"schema {stored['schema']!r} is of another version")
            if not (isinstance(stored["projects"], dict) and isinstance(stored["sessions"], dict)):
                raise ValueError("projects and sessions are no objects")
        except (ValueError, LookupError, TypeError) as error:
            raise StateCorruptError(self.path, str(error), "move it away") from error
        return dict(stored)


def write_rules(pins: Sequence[Pin], left_bytes: int, fail: Callable[[str], object]) -> str:
    """Return the rules as a conversation is given them back; empty without any.

    Args:
        pins: In their order.
        left_bytes: What the text may have; rules that find no room are counted.
        fail: Called with each that cannot be read.
    """
    if not pins:
        return ""
    parts = [RULES_HEADING]
    for number, pin in enumerate(pins, 1):
        if left_bytes < _MIN_RULE_BYTES:
            parts.append(f"({len(pins) - number + 1:,} more are cut: `ultramon host pin --list`)")
            break
        head = f"{number}. " if pin.file is None else f"{number}. {pin.file}:\n"
        try:
            text = pin.read().rstrip("\n")
        except (OSError, StateError) as error:
            fail(f"pin {number}: {error}")
            text = "cannot be read."
        parts.append(head + cut_to(text, left_bytes - len(head.encode("utf-8", "replace"))))
        left_bytes -= len(parts[-1].encode("utf-8", "replace")) + 1
    return "\n".join(parts)


def cut_to(text: str, max_bytes: int, total_chars: int | None = None) -> str:
    """Return a text, or as much of its beginning as fits and how much that is."""
    total = len(text) if total_chars is None else total_chars
    data = text.encode("utf-8", "replace")
    if len(data) > max_bytes:
        text = data[: max(0, max_bytes)].decode("utf-8", "ignore")
    if len(text) >= total:
        return text
    return f"{text}\n(cut: {len(text):,} of {total:,} characters)"


def _pins(kind: dict[str, Any], owner: str) -> list[Pin]:
    stored = kind.get(owner)
    pins = []
    for one in stored if isinstance(stored, list) else ():
        text, file = (one.get("text"), one.get("file")) if isinstance(one, dict) else (None, None)
        if isinstance(text, str) or isinstance(file, str):
            pins.append(Pin(owner, text if isinstance(text, str) else None, file))
    return pins
