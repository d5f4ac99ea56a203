"""Change members of a JSON text and leave every other character as it is.

For settings files of others: their order, indentation, spelling of numbers and line ends stay.
Never on a hook's path, so it may import `json`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_DEFAULT_UNIT = "  "
_MAX_INT_DIGITS = 400

Path = tuple[str | int, ...]


class _Child(NamedTuple):
    key: str | None
    """None in an array."""
    start: int
    value_start: int
    end: int


class _Layout(NamedTuple):
    """How an inserted value is written."""

    indent: str | None
    """The white space before it on its own line; None = everything on one line."""
    unit: str
    newline: str
    colon: str
    comma: str
    separator: str
    """What stands between it and the value before it."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _whole_number(text: str) -> int | float:
    # int() refuses thousands of digits, and no reader in JavaScript distinguishes them either.
    return int(text) if len(text) < _MAX_INT_DIGITS else float(text)


_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_refuse_constant)
_COMPARING = json.JSONDecoder(
    object_pairs_hook=lambda pairs: ("object", *pairs),
    parse_int=lambda text: ("number", float(text)),
    parse_float=lambda text: ("number", float(text)),
    parse_constant=_refuse_constant,
)


def comparable(text: str) -> object:
    """Return a value that equals another one exactly when both texts say the same.

    The order of members counts; spaces, escapes and spellings of a number (1, 1.0) do not.

    Raises:
        ValueError: Not one JSON value.
    """
    return _decode(_COMPARING, text)


def _decode(decoder: json.JSONDecoder, text: str) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class JsonText:
    """A JSON object as text, edited in place.

    Attributes:
        text: The whole document.

    Args:
        text: One JSON object.

    Raises:
        ValueError: It is not JSON (then a `json.JSONDecodeError` with line and column), nested
            too deeply, or no object.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if not isinstance(_decode(_DECODER, text), dict):
            raise ValueError("the value is not a JSON object")

    def get(self, *path: str | int) -> Any:
        """Return the decoded value at a path of keys and indices; None where there is none.

        Raises:
            ValueError: A key on the path is twice in its object, so that it is not clear
                which one is meant.
        """
        start = self._find(path)
        return None if start is None else _DECODER.raw_decode(self.text, start)[0]

    def has(self, *path: str | int) -> bool:
        """Return whether there is a value, be it null."""
        return self._find(path) is not None

    def add(self, path: Path, value: object, key: str | None = None) -> None:
        """Add a value behind the last one of an array, or under a new key of an object.

        It is written the way its neighbours are: on lines of their own, or all on one.
        """
        start = self._require(path)
        children = self._children(start)
        prefix, layout = "", self._layout(start, children)
        if key is not None:
            prefix = json.dumps(key, ensure_ascii=False) + layout.colon
        rendered = prefix + _render(value, layout)
        if children:
            end = children[-1].end
            self._splice(end, end, layout.separator + rendered)
            return
        close = self._skip(start + 1)
        if layout.indent is None:
            self._splice(start + 1, close, rendered)
        else:
            closing = layout.newline + self._line_indent(start)
            opening = layout.newline + layout.indent
            self._splice(start + 1, close, opening + rendered + closing)

    def replace(self, path: Path, value: object) -> None:
        """Write another value where one is."""
        start = self._require(path)
        parent = self._require(path[:-1])
        layout = self._layout(parent, self._children(parent))
        self._splice(start, _DECODER.raw_decode(self.text, start)[1], _render(value, layout))

    def remove(self, path: Path) -> None:
        """Take a value out, with its key and one comma."""
        parent = self._require(path[:-1])
        children = self._children(parent)
        index = next(i for i, child in enumerate(children) if path[-1] in (child.key, i))
        if len(children) == 1:
            self._splice(parent + 1, self._skip(children[0].end), "")
        elif index:
            self._splice(children[index - 1].end, children[index].end, "")
        else:
            self._splice(children[0].start, children[1].start, "")

    def _splice(self, start: int, end: int, new: str) -> None:
        self.text = self.text[:start] + new + self.text[end:]

    def _skip(self, at: int) -> int:
        match = _WHITESPACE.match(self.text, at)
        return match.end() if match else at

    def _require(self, path: Path) -> int:
        start = self._find(path)
        if start is None:
            raise KeyError(path)
        return start

    def _find(self, path: Path) -> int | None:
        at = self._skip(0)
        for step in path:
            if self.text[at] != ("{" if isinstance(step, str) else "["):
                return None
            children = self._children(at)
            if isinstance(step, int):
                found = children[step : step + 1]
            else:
                found = [child for child in children if child.key == step]
            if len(found) > 1:
                line = self.text.count("\n", 0, found[1].start) + 1
                raise ValueError(f"line {line}: the key {step!r} is there twice")
            if not found:
                return None
            at = found[0].value_start
        return at

    def _children(self, start: int) -> list[_Child]:
        is_object = self.text[start] == "{"
        at = self._skip(start + 1)
        children: list[_Child] = []
        while self.text[at] not in "}]":
            if self.text[at] == ",":
                at = self._skip(at + 1)
            key, value_start = None, at
            if is_object:
                key, colon = _DECODER.raw_decode(self.text, at)
                value_start = self._skip(self._skip(colon) + 1)
            end = _DECODER.raw_decode(self.text, value_start)[1]
            children.append(_Child(key, at, value_start, end))
            at = self._skip(end)
        return children

    def _line_indent(self, at: int) -> str:
        before = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return before[: len(before) - len(before.lstrip(" \t"))]

    def _layout(self, start: int, children: list[_Child]) -> _Layout:
        """Return how a value in the array or object at `start` is written.

        What it and its children do not say is as the first member of the document is written.
        """
        top = self._skip(0)
        members = self._children(top)
        unit: str | None = _DEFAULT_UNIT
        colon = ": "
        if members:
            first = members[0]
            lead = self.text[top + 1 : first.start]
            unit = _after_newline(lead) or _DEFAULT_UNIT if "\n" in lead else None
            colon = self.text[_DECODER.raw_decode(self.text, first.start)[1] : first.value_start]
        comma = ", " if colon.endswith(" ") else ","
        if len(children) > 1:
            separator = self.text[children[-2].end : children[-1].start]
        elif children and children[0].start > start + 1:
            separator = "," + self.text[start + 1 : children[0].start]
        else:
            separator = comma
        if children:
            indent = _after_newline(separator) if "\n" in separator else None
        else:
            indent = None if unit is None else self._line_indent(start) + unit
        newline = "\r\n" if "\r\n" in self.text else "\n"
        return _Layout(indent, unit or _DEFAULT_UNIT, newline, colon, comma, separator)


def _after_newline(whitespace: str) -> str:
    return re.sub(r"[^ \t]", "", whitespace.rpartition("\n")[2])


def _render(value: object, layout: _Layout) -> str:
    if layout.indent is None:
        separators = (layout.comma, layout.colon)
        return json.dumps(value, ensure_ascii=False, separators=separators)
    written = json.dumps(
        value, ensure_ascii=False, indent=layout.unit, separators=(",", layout.colon)
    )
    return written.replace("\n", layout.newline + layout.indent)
