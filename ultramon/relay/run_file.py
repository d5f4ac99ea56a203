"""A JSON file in the folder of a run: its schema, and the answer to a damaged one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.errors import StateCorruptError
from ultramon.system.files import read_private_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoded = TypeVar("Decoded")

SCHEMA = 1
MAX_FILE_BYTES = 1 << 26


def read_run_file(path: str, decode: Callable[[dict[str, Any]], Decoded]) -> Decoded:
    """Return what a relay wrote.

    Args:
        path: The file.
        decode: Called with its members; a ValueError, KeyError, TypeError or AttributeError means
            that they are damaged.

    Raises:
        FileNotFoundError: There is none.
        StateCorruptError: No relay of this version wrote it.
    """
    data, _ = read_private_file(path, MAX_FILE_BYTES)
    try:
        value = json.loads(data)
        if value.pop("schema") != SCHEMA:
            raise ValueError("another ultramon wrote it")
        return decode(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorruptError(path, str(error), "start another run") from error


def write_run_file(path: str, members: dict[str, Any]) -> None:
    """Write a file, readable by this user alone.

    Raises:
        StateError: The system refused.
    """
    replace_file(path, json.dumps({"schema": SCHEMA, **members}, indent=1).encode() + b"\n")
