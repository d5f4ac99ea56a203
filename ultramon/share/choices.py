"""What a person chose about sharing: where to, what by name, for how long."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ultramon.errors import ConfigurationError, StateCorruptError, StateError, StateSchemaError
from ultramon.hosts.resident.sharing import CHOICES_FILE, read_choices
from ultramon.share.allow_list import BY_NAME
from ultramon.system import compact_json
from ultramon.system.files import check_one_name, read_private_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1
KEPT_SECONDS = 30 * 86_400.0
"""How long rows stay in the database after their agent has ended, unless chosen otherwise."""
LEAST_KEPT_SECONDS = 3_600.0
MAX_NAME_CHARS = 64
_SECRETS = ("password", "sslpassword")
_VARIABLES = (
    "PGPASSFILE",
    "PGSERVICEFILE",
    "PGSYSCONFDIR",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
)
"""Variables that the driver reads and that hold no secret: they name files."""
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
_CURE = (
    "a URL without it, and the password in ~/.pgpass or a service file, or the whole URL in a file"
    " of mode 0600 given as --url-file: everybody on this machine can read a command line"
)


class Choices(NamedTuple):
    """What was chosen, as the file in the state directory holds it."""

    url: str | None
    """The database, without a password; None = it stands in a file."""
    url_file: str | None
    """A file of mode 0600 with the URL on its first line; read at each start."""
    names: tuple[str, ...] = ()
    """What is sent by name, of `ultramon.share.allow_list.BY_NAME`."""
    machine_name: str | None = None
    """What the machine is called in the database; None = by its opaque id alone."""
    retention_seconds: float = KEPT_SECONDS
    is_on: bool = True
    """False = nothing is sent; the rest is kept for `--erase`."""

    def read_url(self) -> str:
        """Return the URL of the database, with its password where it has one.

        Raises:
            ConfigurationError: There is none, or its file is not safe to use.
        """
        if self.url_file is None:
            if self.url is None:
                raise ConfigurationError("url", None, "the URL of a database", CHOICES_FILE)
            return self.url
        try:
            data, found = read_private_file(self.url_file, check=check_one_name)
        except (OSError, StateError) as error:
            allowed = "a regular file of yours"
            raise ConfigurationError("url_file", str(error), allowed, "argument") from error
        if found.st_mode & 0o077:
            raise ConfigurationError("url_file", self.url_file, "a file of mode 0600", "argument")
        lines = data.decode("utf-8", "replace").split("\n")
        return check_url(lines[0].strip(), self.url_file)

    def save(self, directory: str) -> None:
        """Write the file.

        Raises:
            StateWriteError: The file system refused.
        """
        value = {
            "schema": SCHEMA,
            "url": self.url,
            "urlFile": self.url_file,
            "with": [*self.names],
            "machineName": self.machine_name,
            "retentionSeconds": self.retention_seconds,
            "isOn": self.is_on,
            "command": [sys.executable, "-P", _PROGRAM],
            "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        }
        path = os.path.join(directory, CHOICES_FILE)
        replace_file(path, compact_json.dumps(value).encode("ascii") + b"\n")


def load_choices(directory: str) -> Choices | None:
    """Return what was chosen; None = nothing was.

    Raises:
        StateCorruptError: The file is not one that ultramon wrote.
        StateSchemaError: A newer ultramon wrote it.
        OSError: The system refused to read it.
    """
    path = os.path.join(directory, CHOICES_FILE)
    try:
        value = read_choices(directory)
        return None if value is None else _choices_of(value, path)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, StateError):
            raise
        cure = "delete it, and run ultramon share URL again"
        raise StateCorruptError(path, f"is no choice about sharing: {error}", cure) from error


def _choices_of(value: Mapping[str, Any], path: str) -> Choices:
    if value["schema"] > SCHEMA:
        reason = f"schema {value['schema']} was written by a newer ultramon"
        raise StateSchemaError(path, reason, "upgrade")
    return Choices(
        value["url"],
        value["urlFile"],
        check_names(value["with"], path),
        value["machineName"],
        float(value["retentionSeconds"]),
        value["isOn"] is True,
    )


def check_names(names: Sequence[str], source: str = "argument") -> tuple[str, ...]:
    """Return what is sent by name, in the order of the list; refuse what is not in it.

    Raises:
        ConfigurationError: A name is not one of `BY_NAME`.
    """
    for name in names:
        if name not in BY_NAME:
            raise ConfigurationError("with", name, f"some of {', '.join(BY_NAME)}", source)
    return tuple(name for name in BY_NAME if name in names)


def check_machine_name(name: str, source: str = "argument") -> str | None:
    """Return what a machine is called; None for an empty name.

    Raises:
        ConfigurationError: It is too long, or has characters that a screen does not show.
    """
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        allowed = f"at most {MAX_NAME_CHARS} printable characters"
        raise ConfigurationError("name", name, allowed, source)
    return name or None


def check_retention(seconds: float, source: str = "argument") -> float:
    """Return how long rows stay in the database.

    Raises:
        ConfigurationError: It is less than an hour.
    """
    if seconds < LEAST_KEPT_SECONDS:
        raise ConfigurationError("keep", seconds, "an hour or more", source)
    return seconds


def check_url(url: str, source: str = "argument") -> str:
    """Return the URL of a PostgreSQL database.

    Raises:
        ConfigurationError: It is none.
    """
    from ultramon.backends.postgres.connection.address import parse_address

    parse_address(url, source)
    return url


def refuse_password(url: str) -> str:
    """Return a URL from a command line; refuse one with a password in it.

    Raises:
        ConfigurationError: It has one, or is no URL of a database; the password is not shown.
    """
    check_url(url)
    parts = urlsplit(url)
    if parts.password or any(name in _SECRETS for name, _ in parse_qsl(parts.query)):
        raise ConfigurationError("url", "one with a password", _CURE)
    return url
