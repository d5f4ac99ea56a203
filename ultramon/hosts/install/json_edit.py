"""Change members of a JSON text and leave every other character as it is.

For settings files of others: their order, indentation, spelling of numbers, line ends and comments
stay. Never on a hook's path, so it may import `json`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ultramon.system.json_comments import comment_spans, without_comments

_BLANKS = " \t\n\r"
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


def comparable(text: str, *, has_comments: bool = False) -> object:
    """Return a value that equals another one exactly when both texts say the same.

    The order of members counts; spaces, escapes and spellings of a number (1, 1.0) do not. Of
    comments count their words, and how many strings come before each.

    Raises:
        ValueError: Not one JSON value.
    """
    if not has_comments:
        return _decode(_COMPARING, text)
    comments = [
        (text.count('"', 0, start), text[start:end].strip()) for start, end in comment_spans(text)
    ]
    return _decode(_COMPARING, without_comments(text)), comments


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
        has_comments: Whether it may hold comments, which stay.

    Raises:
        ValueError: It is not JSON (then a `json.JSONDecodeError` with line and column), nested
            too deeply, or no object.
    """

    def __init__(self, text: str, *, has_comments: bool = False) -> None:
        self.text = text
        self._has_comments = has_comments
        self._bare = self._without_comments()
        if not isinstance(_decode(_DECODER, self._bare), dict):
            raise ValueError("the value is not a JSON object")

    def _without_comments(self) -> str:
        return without_comments(self.text) if self._has_comments else self.text

    def get(self, *path: str | int) -> Any:
        """Return the decoded value at a path of keys and indices; None where there is none.

        Raises:
            ValueError: A key on the path is twice in its object, so that it is not clear
                which one is meant.
        """
        start = self._find(path)
        return None if start is None else _DECODER.raw_decode(self._bare, start)[0]

    def has(self, *path: str | int) -> bool:
        """Return whether there is a value, be it null."""
        return self._find(path) is not None

    def add(self, path: Path, value: object, key: str | None = None) -> None:
        """Add a value behind the last one of an array, or under a new key of an object.

        It is written the way its neighbours are: on lines of their own, or all on one. Comments
        behind the last value stay before it.
        """
        start = self._require(path)
        children = self._children(start)
        prefix, layout = "", self._layout(start, children)
        if key is not None:
            prefix = json.dumps(key, ensure_ascii=False) + layout.colon
        rendered = prefix + _render(value, layout)
        last = children[-1].end if children else start + 1
        close = self._skip(last)
        comments = self.text[last:close].rstrip(_BLANKS)
        is_open = _ends_in_line_comment(comments)
        if children:
            separator = layout.separator
            if comments:
                gap = separator.partition(",")[2]
                separator = "," + comments
                separator += layout.newline if is_open and "\n" not in gap else ""
                separator += gap
            self._splice(last, last + len(comments), separator + rendered)
        elif layout.indent is None:
            lead = comments + (layout.newline if is_open else "")
            self._splice(last, close, lead + rendered)
        else:
            closing = layout.newline + self._line_indent(start)
            opening = comments + layout.newline + layout.indent
            self._splice(last, close, opening + rendered + closing)

    def replace(self, path: Path, value: object) -> None:
        """Write another value where one is.

        In an object with comments only those members are written that change.
        """
        start = self._require(path)
        end = _DECODER.raw_decode(self._bare, start)[1]
        current = self.get(*path)
        if self._has_comment(start, end) and isinstance(current, dict) and isinstance(value, dict):
            for name in current:
                if name not in value:
                    self.remove((*path, name))
            for name, one in value.items():
                if name not in current:
                    self.add(path, one, name)
                elif one != current[name]:
                    self.replace((*path, name), one)
            return
        parent = self._require(path[:-1])
        layout = self._layout(parent, self._children(parent))
        self._splice(start, end, _render(value, layout))

    def remove(self, path: Path) -> None:
        """Take a value out, with its key and one comma; comments around it stay."""
        parent = self._require(path[:-1])
        children = self._children(parent)
        index = next(i for i, child in enumerate(children) if path[-1] in (child.key, i))
        child = children[index]
        if len(children) == 1:
            close = self._skip(child.end)
            has_comment = self._has_comment(parent + 1, child.start) or self._has_comment(
                child.end, close
            )
            left = self._before(parent + 1, child) + self.text[child.end : close]
            self._splice(parent + 1, close, left if has_comment else "")
        elif index:
            before = children[index - 1].end
            left = self._before(before, child) if self._has_comment(before, child.start) else ""
            self._splice(before, child.end, left)
        else:
            after = children[1].start
            left = self._without_comma(child.end, after).lstrip(_BLANKS)
            self._splice(child.start, after, left if self._has_comment(child.end, after) else "")

    def _before(self, start: int, child: _Child) -> str:
        """Return what stays of the text before a value, without needless white space."""
        left = self._without_comma(start, child.start)
        behind = self.text[child.end :].lstrip(" \t")
        comments = left.rstrip(_BLANKS)
        if _ends_in_line_comment(comments) and not behind.startswith(("\n", "\r\n")):
            return left
        return comments

    def _without_comma(self, start: int, end: int) -> str:
        comma = self._bare.find(",", start, end)
        if comma < 0:
            return self.text[start:end]
        return self.text[start:comma] + self.text[comma + 1 : end]

    def _has_comment(self, start: int, end: int) -> bool:
        return self.text[start:end] != self._bare[start:end]

    def _splice(self, start: int, end: int, new: str) -> None:
        self.text = self.text[:start] + new + self.text[end:]
        self._bare = self._without_comments()

    def _skip(self, at: int) -> int:
        match = _WHITESPACE.match(self._bare, at)
        return match.end() if match else at

    def _require(self, path: Path) -> int:
        start = self._find(path)
        if start is None:
            raise KeyError(path)
        return start

    def _find(self, path: Path) -> int | None:
        at = self._skip(0)
        for step in path:
            if self._bare[at] != ("{" if isinstance(step, str) else "["):
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
        is_object = self._bare[start] == "{"
        at = self._skip(start + 1)
        children: list[_Child] = []
        while self._bare[at] not in "}]":
            if self._bare[at] == ",":
                at = self._skip(at + 1)
            key, value_start = None, at
            if is_object:
                key, colon = _DECODER.raw_decode(self._bare, at)
                value_start = self._skip(self._skip(colon) + 1)
            end = _DECODER.raw_decode(self._bare, value_start)[1]
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
            lead = self._bare[top + 1 : first.start]
            unit = self._line_indent(first.start) or _DEFAULT_UNIT if "\n" in lead else None
            behind = _DECODER.raw_decode(self._bare, first.start)[1]
            if not self._has_comment(behind, first.value_start):
                colon = self.text[behind : first.value_start]
        comma = ", " if colon.endswith(" ") else ","
        newline = "\r\n" if "\r\n" in self.text else "\n"
        separator = comma
        if len(children) > 1:
            begin, sign = children[-2].end, ""
        else:
            begin, sign = start + 1, ","
        if children and children[-1].start > begin:
            gap = self._bare[begin : children[-1].start]
            if not self._has_comment(begin, children[-1].start):
                separator = sign + gap
            elif "\n" in gap:
                separator = "," + newline + self._line_indent(children[-1].start)
        if children:
            indent = _after_newline(separator) if "\n" in separator else None
        else:
            indent = None if unit is None else self._line_indent(start) + unit
        return _Layout(indent, unit or _DEFAULT_UNIT, newline, colon, comma, separator)


def _ends_in_line_comment(text: str) -> bool:
    """Tell whether what follows a text of comments would belong to the last one."""
    starts = [start for start, _ in comment_spans(text)]
    return bool(starts) and text.startswith("//", starts[-1])


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
