"""Transcript lines as Claude Code writes them, for the tests of what reads them."""

import json

AT = "2026-11-21T20:28:51.642Z"


def line(entry, **style):
    """One transcript line as the client writes it."""
    return json.dumps(entry, **({"separators": (",", ":")} | style)).encode() + b"\n"


def reply(message_id="msg_1", usage=None, content=(), **entry):
    """An assistant line."""
    return {
        "isSidechain": False,
        "message": {
            "id": message_id,
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": list(content),
            "usage": {"input_tokens": 10, "output_tokens": 5} if usage is None else usage,
        },
        "type": "assistant",
        "timestamp": AT,
        "sessionId": "session",
    } | entry


def prompt(content, **entry):
    """A user line."""
    return {
        "isSidechain": False,
        "type": "user",
        "message": {"role": "user", "content": content},
        "sessionId": "session",
    } | entry
