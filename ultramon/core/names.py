"""How an agent's id is shown: shorter where nobody chose it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.core.record import StateRecord

SDK_HOST = "sdk"
_SHORT_ID_CHARS = 8


def short_id(record: StateRecord) -> str:
    """Return an id as it is shown: of a host's session only the beginning, as nobody chose it."""
    session_id, own = record.session_id, record.agent_id
    if record.host == SDK_HOST or not (session_id and own.startswith(session_id)):
        return own
    return session_id[:_SHORT_ID_CHARS] + own[len(session_id) :]
