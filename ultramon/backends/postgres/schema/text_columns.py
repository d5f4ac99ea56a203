"""Encodes text that PostgreSQL refuses: it takes no NUL and no lone surrogates."""

from __future__ import annotations

from ultramon.system import compact_json

_MARK = '"'


def to_column(text: str) -> str:
    """Return a text unchanged where possible, else as JSON, which begins with a quote."""
    if "\x00" not in text and not text.startswith(_MARK):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return compact_json.dumps(text)
        return text
    return compact_json.dumps(text)


def from_column(column: str) -> str:
    """Return the text that `to_column` encoded."""
    return str(compact_json.loads(column)) if column.startswith(_MARK) else column
