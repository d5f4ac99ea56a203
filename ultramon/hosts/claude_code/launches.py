"""Which tool call launched which subagent, by the notes that the host keeps beside transcripts.

Standard library only; loaded when a launch has failed.
"""

from __future__ import annotations

import os

from ultramon.system.compact_json import loads
from ultramon.system.files import read_private_file

_PREFIX, _SUFFIX = "agent-", ".meta.json"
_MAX_NOTES = 1_000
_MAX_NOTE_BYTES = 64 * 1024


def subagent_of_call(transcript_path: str, call_id: str) -> str | None:
    """Return the host's name for the subagent that a tool call launched; None = not known.

    Args:
        transcript_path: Of the session.
        call_id: The tool call, of the session or of one of its subagents.
    """
    folder = os.path.join(transcript_path.removesuffix(".jsonl"), "subagents")
    try:
        names = [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    except OSError:
        return None
    for name in names[:_MAX_NOTES]:
        try:
            data, _ = read_private_file(os.path.join(folder, name), _MAX_NOTE_BYTES)
            note = loads(data)
        except (OSError, ValueError):
            continue
        if isinstance(note, dict) and note.get("toolUseId") == call_id:
            return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return None
