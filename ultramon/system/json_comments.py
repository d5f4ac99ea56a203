"""Comments in JSON texts, for files of programs that skip them. Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def comment_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each comment begins and ends: ``//`` up to the end of its line, ``/* */``.

    One that is not closed is none, so that a decoder refuses it.
    """
    at = 0
    while (slash := text.find("/", at)) >= 0:
        quote = text.find('"', at, slash)
        if quote >= 0:
            at = _end_of_string(text, quote)
            continue
        end = slash + 1
        if text.startswith("//", slash):
            end = text.find("\n", slash)
            end = len(text) if end < 0 else end
            yield slash, end - (text[end - 1] == "\r")
        elif text.startswith("/*", slash) and (close := text.find("*/", slash + 2)) >= 0:
            end = close + 2
            yield slash, end
        at = end


def without_comments(text: str) -> str:
    """Return a text with spaces in the place of comments: every other character stays where it is.

    The line ends inside of a comment stay too.
    """
    pieces: list[str] = []
    at = 0
    for start, end in comment_spans(text):
        pieces += text[at:start], "".join(one if one in "\r\n" else " " for one in text[start:end])
        at = end
    return "".join(pieces) + text[at:]


def _end_of_string(text: str, quote: int) -> int:
    """Return the place behind a string; the end of the text where it is not closed."""
    at = quote + 1
    while (close := text.find('"', at)) >= 0:
        backslashes = close - len(text[at:close].rstrip("\\")) - at
        if backslashes % 2 == 0:
            return close + 1
        at = close + 1
    return len(text)
