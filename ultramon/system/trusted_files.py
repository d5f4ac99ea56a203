"""The files of projects that this user trusts, each with the hash of the bytes that were trusted.

They are kept in the user's configuration directory, which no project and no variable of ultramon
names. Standard library only: hooks and alerts may come here where a project has settings.
"""

from __future__ import annotations

import os
import time

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.system import compact_json
from ultramon.system.files import open_private, read_private_file, replace_file
from ultramon.system.locks import Lock
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SCHEMA = 1
TRUSTED_NAME = "trusted.json"
_LOCK_TIMEOUT_SECONDS = 5.0

TRUSTED, CHANGED, NEW = "trusted", "changed", "new"
"""The file has the bytes that were trusted; it had others; it was never trusted."""


def user_directory() -> str | None:
    """Return the user's configuration directory of ultramon; None for a user without a home."""
    from platformdirs import user_config_dir

    try:
        return user_config_dir("ultramon", appauthor=False)
    except RuntimeError:
        return None


def trust_of(path: str, data: bytes) -> str:
    """Return whether a file with these bytes is trusted: `TRUSTED`, `CHANGED` or `NEW`.

    A record that cannot be read, or that others could have written, makes nothing trusted.
    """
    try:
        known = _read().get(os.path.realpath(path))
    except (OSError, StateCorruptError, ConfigurationError):
        return NEW
    if known is None:
        return NEW
    return TRUSTED if known["sha256"] == _hash(data) else CHANGED


def trusted_files() -> dict[str, dict[str, str]]:
    """Return of each trusted file, by its path, ``sha256`` and ``trustedAt``.

    Raises:
        StateCorruptError: The record is not what `trust` wrote, or others may write to it.
        OSError: The system refused to read it.
    """
    return dict(sorted(_read().items()))


def trust(path: str, data: bytes) -> None:
    """Trust a file as long as it has these bytes.

    Raises:
        ConfigurationError: This user has no home directory.
        StateError: The record cannot be read, or cannot be written.
    """
    files = {"sha256": _hash(data), "trustedAt": format_time(time.time())}
    with _locked():
        _write({**_read(), os.path.realpath(path): files})


def distrust(path: str) -> bool:
    """Trust a file no longer; return whether it was trusted.

    Raises:
        ConfigurationError: This user has no home directory.
        StateError: The record cannot be read, or cannot be written.
    """
    with _locked():
        files = _read()
        known = files.pop(os.path.realpath(path), None)
        if known is not None:
            _write(files)
    return known is not None


def _record_path() -> str:
    directory = user_directory()
    if directory is None:
        allowed = "a user with a home directory, which keeps what is trusted"
        raise ConfigurationError("trust", None, allowed, "environment")
    return os.path.join(directory, TRUSTED_NAME)


def _locked() -> AbstractContextManager[object]:
    path = _record_path()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return Lock(f"{path}.lock", open_private, _LOCK_TIMEOUT_SECONDS)


def _read() -> dict[str, dict[str, str]]:
    path = _record_path()
    advice = "delete it, and trust again what is yours"
    try:
        data, found = read_private_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if hasattr(os, "geteuid") and found.st_mode & 0o022:  # elsewhere modes say nothing
        raise StateCorruptError(path, "others may write to it", advice)
    try:
        value = compact_json.loads(data)
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']}")
        return {
            name: {"sha256": known["sha256"], "trustedAt": known["trustedAt"]}
            for name, known in value["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorruptError(path, f"is no record of trusted files: {error}", advice) from None


def _write(files: dict[str, dict[str, str]]) -> None:
    text = compact_json.dumps({"schema": SCHEMA, "files": files})
    replace_file(_record_path(), text.encode("ascii") + b"\n")


def _hash(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
