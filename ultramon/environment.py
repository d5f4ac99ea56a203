"""What the environment decides before anything is configured; cheap to import."""

from __future__ import annotations

import os

from ultramon.core.ids import check_agent_id
from ultramon.core.switches import is_on
from ultramon.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TOML_NAME = "ultramon.toml"


def disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``ULTRAMON_DISABLED`` turns every call into a no-op."""
    return is_on("ULTRAMON_DISABLED", environ)


def given_or_named(given: str | None, name: str, variable: str) -> str | None:
    """Return an id that was given, else the one in a variable; None without either.

    Raises:
        InvalidAgentIdError: It is none; an empty one is an error where it was given.
    """
    if given is not None:
        return check_agent_id(given, name)
    named = os.environ.get(variable)
    return check_agent_id(named, variable) if named else None


def state_directory() -> str:
    """Return the state directory: ``ULTRAMON_STATE_DIR``, else the platform's for this user.

    Raises:
        ConfigurationError: The variable is not set and this user has no home directory.
    """
    chosen = os.environ.get("ULTRAMON_STATE_DIR")
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    from platformdirs import user_state_dir

    try:
        return user_state_dir("ultramon", appauthor=False)
    except RuntimeError as error:
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError("ULTRAMON_STATE_DIR", chosen, allowed, "environment") from error


def read_toml(section: str) -> tuple[dict[str, Any], str]:
    """Return one table of ``ultramon.toml`` and the file's path; both empty where there is none.

    The file is ``ULTRAMON_CONFIG``, else the one in the working directory, else the one in the
    user's configuration directory. TOML is loaded only where there is one.

    Raises:
        ConfigurationError: It cannot be read, is no TOML, or the section is no table.
    """
    named = os.environ.get("ULTRAMON_CONFIG")
    for path in [os.path.expanduser(named)] if named else _toml_paths():
        if not named and not os.path.exists(path):
            continue
        import tomllib

        try:
            with open(path, "rb") as file:
                table = tomllib.load(file).get(section, {})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            source = "ULTRAMON_CONFIG" if named else path
            raise ConfigurationError(path, str(error), "a readable TOML file", source) from error
        if not isinstance(table, dict):
            raise ConfigurationError(section, table, "a table", path)
        return table, path
    return {}, ""


def _toml_paths() -> list[str]:
    from platformdirs import user_config_dir

    try:
        home = user_config_dir("ultramon", appauthor=False)
    except RuntimeError:
        return [TOML_NAME]
    return [TOML_NAME, os.path.join(home, TOML_NAME)]
