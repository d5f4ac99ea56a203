"""The first line of a session that a database is read as: whose it is.

Standard library only. Each line names its host and what it is, ``{"goose": "session", "data": …}``.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import has_line, head_objects, object_in, text_or_none
from ultramon.hosts.transcripts.records import TranscriptIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SESSION = "session"


def looks_like_session(head: bytes, host: str) -> bool:
    """Tell whether lines that begin with `head` are those of a session of a host."""
    return f'"{host}"'.encode() in head and has_line(head, lambda entry: entry.get(host) == SESSION)


def identify_session(lines: Iterable[bytes], host: str) -> TranscriptIdentity | None:
    """Return whose lines they are: the first one of a session says it; None = it does not."""
    for entry in head_objects(lines):
        data = object_in(entry, "data")
        name, root = text_or_none(data.get("id")), text_or_none(data.get("root"))
        if entry.get(host) != SESSION or name is None or root is None:
            continue
        began = data.get("created")
        return TranscriptIdentity(
            root,
            None if name == root else name,
            text_or_none(object_in(data, "model").get("model_name")),
            text_or_none(data.get("directory")),
            began_at=float(began) if isinstance(began, int | float) else None,
        )
    return None
