"""Members of a hook's payload, checked: what any client may have put there.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FIELD_CHARS = 4096
"""As long as a path may be; what names an agent or a call is shorter."""
_CALL_ID_MARK = b'"tool_use_id":"'
_MAX_CALL_ID_CHARS = 256


def checked_text(payload: dict[str, Any], name: str) -> str | None:
    """Return a text that names something; None where it is missing or empty.

    Raises:
        ValueError: It is no text, or too long for a name.
    """
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name} is of kind {type(value).__name__}, not text")
    if len(value) > MAX_FIELD_CHARS:
        raise ValueError(f"{name} has {len(value):,} characters, at most {MAX_FIELD_CHARS:,}")
    return value or None


def text_in(payload: dict[str, Any], name: str) -> str:
    """Return a text; empty where there is none."""
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def call_id_at_end(tail: bytes) -> str | None:
    """Return the ``tool_use_id`` in the last part of a payload, or None."""
    # Quotes inside a text are escaped, so this spelling is a key; the payload's own comes last.
    _, found, rest = tail.rpartition(_CALL_ID_MARK)
    call_id, closed, _ = rest.partition(b'"')
    if not (found and closed and call_id.isascii() and len(call_id) <= _MAX_CALL_ID_CHARS):
        return None
    return call_id.decode("ascii")
