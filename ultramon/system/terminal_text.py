"""Text for a terminal: control characters and invisible ones become visible escapes."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASCII = {"·": "-", "≥": ">", "–": "-", "…": "~", "≈": "~"}
"""What stands for our own signs where an encoding lacks them: as wide, so that tables hold."""
_MAX_MARKS = 4
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"))
# Letters and marks that draw nothing: they hide text, or move everything behind them.
_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)


def sanitize(text: str, *, max_chars: int = 10_000, keep_lines: bool = False) -> str:
    r"""Return text that cannot control a terminal.

    Control characters, bidi controls, zero-width and tag characters, surrogates and line
    separators become a visible escape such as ``\x1b``; of marks stacked on one letter four stay.

    Args:
        text: Text from a state, a recording or an error.
        max_chars: Longer text is cut, and ends in ``…``.
        keep_lines: Keep ``\n``: for text with trusted line ends.
    """
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category[0] == "M" else 0
        hidden = category in _ESCAPED_CATEGORIES or char in _INVISIBLE or marks > _MAX_MARKS
        shown.append(_escape(char) if hidden and not (keep_lines and char == "\n") else char)
    return "".join(shown)


def first_of(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks: our own signs in ASCII, others escaped; a handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    text = "".join(_ASCII.get(one) or _escape(one) for one in error.object[error.start : error.end])
    return text, error.end


def ascii_words(text: str) -> str:
    """Return a text in ASCII with as many characters: our own signs, and ``?`` for others."""
    plain = "".join(_ASCII.get(char, char) for char in text)
    return plain.encode("ascii", "replace").decode("ascii")


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
