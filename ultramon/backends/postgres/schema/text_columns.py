"""Encodes text that PostgreSQL refuses: it takes no NUL and no lone surrogates."""

from __future__ import annotations

from typing import TypeVar

from ultramon.system import compact_json

_MARK = '"'
Text = TypeVar("Text", str, str | None)


def to_column(text: Text) -> Text:
    """Return a text unchanged where possible, else as JSON, which begins with a quote."""
    if text is None:
        return text
    if "\x00" not in text and not text.startswith(_MARK):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return compact_json.dumps(text)
        return text
    return compact_json.dumps(text)


def from_column(column: Text) -> Text:
    """Return the text that `to_column` encoded."""
    if column is None or not column.startswith(_MARK):
        return column
    try:
        return str(compact_json.loads(column))
    except ValueError:
        return column  # something else changed it
