"""Agent ids: names that are valid file names on every system."""

from __future__ import annotations

import os

from ultramon.errors import InvalidAgentIdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

MAX_ID_LENGTH = 128
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_REST = _FIRST | frozenset("._-")
_DEVICES = {"con", "prn", "aux", "nul"}
_DEVICES.update(f"{port}{number}" for port in ("com", "lpt") for number in range(10))


def check_agent_id(agent_id: object, name: str = "agent id") -> str:
    """Return a valid id unchanged.

    An id is never repaired: two ids that differ only in stripped characters would share a file.

    Args:
        agent_id: The id, or the name of a run, which has the same form.
        name: Its role, for the error.

    Raises:
        InvalidAgentIdError: It is not 1-128 of ``A-Z a-z 0-9 . _ -`` starting with a letter or
            digit, ends with a dot, or names a Windows device.
    """
    if not isinstance(agent_id, str):
        raise InvalidAgentIdError(agent_id, "it is not text", name)
    if not agent_id:
        raise InvalidAgentIdError(agent_id, "it is empty", name)
    if len(agent_id) > MAX_ID_LENGTH:
        raise InvalidAgentIdError(agent_id, f"it has {len(agent_id)} characters", name)
    if agent_id[0] not in _FIRST:
        raise InvalidAgentIdError(agent_id, "it does not start with a letter or digit", name)
    if not _REST.issuperset(agent_id):
        raise InvalidAgentIdError(agent_id, "it has characters that are not allowed", name)
    if agent_id[-1] == ".":
        raise InvalidAgentIdError(agent_id, "it ends with a dot", name)
    # On Windows "con.json" is the console too, whatever follows the dot.
    if agent_id.split(".", 1)[0].lower() in _DEVICES:
        raise InvalidAgentIdError(agent_id, "it names a device on Windows", name)
    return agent_id


def is_agent_id(value: object) -> TypeGuard[str]:
    """Return whether a value is a valid id."""
    try:
        return bool(check_agent_id(value))
    except InvalidAgentIdError:
        return False


def random_hex(count_bytes: int) -> str:
    """Return random hexadecimal text from the operating system."""
    return os.urandom(count_bytes).hex()


def generate_agent_id() -> str:
    """Return a new id, ``agent-`` and 12 random hexadecimal digits."""
    return f"agent-{random_hex(6)}"
