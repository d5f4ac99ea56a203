"""The files of settings that are in force here, and whether their user answers for them.

A file that is found by directory alone may have come with a cloned project. It is a *project's*
file until it is trusted by its content; what may be taken of such a file `ultramon.system.settings`
decides. Nothing that such a file holds raises an error.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError, StateError
from ultramon.system.files import read_shared_file
from ultramon.system.trusted_files import CHANGED, NEW, TRUSTED, trust_of, user_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOML_NAME = "ultramon.toml"
_MOST_LEVELS = 64
_TOO_DEEP = "its values are nested too deep"
MAX_PROJECT_BYTES = 65_536
"""A larger file of a project is not read: parsing it may take as long as its author likes."""


class SettingsFile:
    """One file of settings.

    Attributes:
        path: Where it is; absolute, but for the path that ``ULTRAMON_CONFIG`` gives.
        trust: `TRUSTED` for a file of the user; of a project's as `trust_of` says.
        tables: What is in it; empty where it cannot be read.
        problem: Why a project's file cannot be read; empty for every other one.
    """

    __slots__ = ("path", "problem", "tables", "trust")

    def __init__(
        self, path: str, tables: dict[str, Any], trust: str = TRUSTED, problem: str = ""
    ) -> None:
        self.path = path
        self.tables = tables
        self.trust = trust
        self.problem = problem

    @property
    def is_trusted(self) -> bool:
        """Whether everything in it is taken."""
        return self.trust == TRUSTED

    @property
    def cure(self) -> str:
        """The command that has everything in a project's file taken."""
        from shlex import quote

        return f"ultramon trust {quote(os.path.dirname(self.path))}"

    def why_not(self) -> str:
        """Return why not everything in a project's file is taken."""
        if self.problem:
            return f"the file is not read: {self.problem}"
        if self.trust == CHANGED:
            return "it has changed since it was trusted"
        return "this directory is not trusted"


def settings_files() -> list[SettingsFile]:
    """Return the files in force, the weaker before the stronger.

    ``ULTRAMON_CONFIG`` names the only one; else there are the one in the user's configuration
    directory and the one in the working directory.

    Raises:
        ConfigurationError: A file of the user, or a trusted one, cannot be read or is no TOML.
    """
    if named := os.environ.get("ULTRAMON_CONFIG"):
        return [_read_own(os.path.expanduser(named), "ULTRAMON_CONFIG")]
    files = []
    home = user_directory()
    own = None if home is None else os.path.join(home, TOML_NAME)
    if own is not None and os.path.exists(own):
        files.append(_read_own(own))
    project = project_path(os.curdir)
    if project is not None and not _is_same(project, own):
        files.append(_read_project(project))
    return files


def project_path(directory: str) -> str | None:
    """Return the path of the file in a directory; None where there is none."""
    try:
        path = os.path.abspath(os.path.join(directory, TOML_NAME))
    except OSError:  # the working directory was deleted
        return None
    return path if os.path.lexists(path) else None


def read_project_bytes(path: str) -> bytes:
    """Return the content of a project's file.

    Raises:
        StateCorruptError: It is a link, no regular file, or too large.
        OSError: The system refused to read it.
    """
    return read_shared_file(path, MAX_PROJECT_BYTES)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the tables in the bytes of a file.

    Raises:
        ValueError: They are no TOML in UTF-8.
    """
    import tomllib

    try:
        tables = tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Dotted keys nest without recursion here, and what shows such a value later would recurse.
    level: list[Any] = [tables]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return tables
    raise ValueError(_TOO_DEEP)


def _read_own(path: str, source: str = "") -> SettingsFile:
    try:
        with open(path, "rb") as file:
            return SettingsFile(path, parse_toml(file.read()))
    except (OSError, ValueError) as error:
        allowed = "a readable TOML file"
        raise ConfigurationError(path, str(error), allowed, source or path) from error


def _read_project(path: str) -> SettingsFile:
    try:
        data = read_project_bytes(path)
    except StateError as error:
        return SettingsFile(path, {}, NEW, error.reason)
    except OSError as error:
        return SettingsFile(path, {}, NEW, str(error.strerror))
    trust = trust_of(path, data)
    try:
        return SettingsFile(path, parse_toml(data), trust)
    except ValueError as error:
        if trust == TRUSTED:
            raise ConfigurationError(path, str(error), "a readable TOML file", path) from error
        return SettingsFile(path, {}, trust, f"it is no TOML: {error}")


def _is_same(path: str, other: str | None) -> bool:
    """Return whether two paths lead to one file: in the user's directory a file is the user's."""
    try:
        return other is not None and os.path.samefile(path, other)
    except OSError:
        return False
