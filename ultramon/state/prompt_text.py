"""Parts of a text for a model: lists and quotations that nothing in them can end.

Whatever a value holds, it stays on lines that begin with ``- `` or ``> ``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ITEM_CHARS = 500
GOAL_HEADING = "# Goal\n"
"""What the first messages of relays and of continued sessions begin with."""
RULES_HEADING = "Rules that the user has pinned, word for word:"
SUCCESSOR_WORDS = "## Where the work stands\nThis is context "
"""In the prompt of a context that continues the work of an earlier one."""
CONTINUED_WORDS = "## Where the work stands\nThis conversation continues session"
"""In the first message of a session that continues another one in a fresh window."""


def one_line(text: str) -> str:
    """Return a text as one line of at most 500 characters, with a mark where it was cut."""
    # Splits at every character that a reader may take for the end of a line, as U+2028.
    line = " ".join(text.splitlines())
    return line if len(line) <= MAX_ITEM_CHARS else f"{line[:MAX_ITEM_CHARS]}…"


def cut_text(text: str, size: int) -> str:
    """Return a text, or as many characters of its beginning and how many more there are."""
    more = len(text) - size
    return text if more <= 0 else f"{text[:size]} … ({more:,} more characters)"


def section(
    title: str,
    value: str | Sequence[str] | None,
    size: int,
    *,
    total: int | None = None,
    preface: str = "",
) -> list[str]:
    """Return the lines of one part: a heading with a list or a quotation; none without a value.

    Args:
        title: Of the heading.
        value: A list, or a text to quote.
        size: Most items of a list, or characters of a text; the rest is counted.
        total: Length of the list, where not all of it is given.
        preface: A line before a quotation, outside of it.
    """
    if not value:
        return []
    if isinstance(value, str):
        if not size:
            return ["", f"## {title} ({len(value):,} characters left out)"]
        quotation = [f"> {line}" for line in cut_text(value, size).splitlines()]
        return ["", f"## {title}", *([preface, ""] if preface else []), *quotation]
    count = max(len(value), total or 0)
    lines = [f"- {one_line(item)}" for item in value[:size]]
    more = count - len(lines)
    return ["", f"## {title} ({count})", *lines, *([f"- … and {more} more"] if more else [])]
