"""What the environment decides before anything is configured; cheap to import."""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

TOML_NAME = "ultramon.toml"
TABLES = ("context", "alerts", "webhooks")
"""The tables of that file; one that is nearly called so is refused, any other belongs to others."""
VARIABLES = (
    "AGENT_ID", "AUDIENCE", "BACKEND", "CONFIG", "DISABLED", "HOOK_SECRET", "NO_ALERT", "NOTIFY",
    "NOTIFY_THRESHOLDS", "PARENT_ID", "RUN", "STATE_DIR", "TOKEN_FILE", "TOKEN_MINT_FILE",
)  # fmt: skip
"""The variables, behind ``ULTRAMON_``, that belong to no table and to no flag of a command."""

_LEAST_LIKENESS = 0.78
"""Of two names, as `difflib` measures it; between any two variables of ours it is below that."""
_looked_at: set[str] = set()


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ``; did you mean …?`` for the known name most like one, nothing where none is."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, _LEAST_LIKENESS)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def check_settings(
    names: Iterable[str], known: Collection[str], source: str, table: str = ""
) -> None:
    """Refuse a setting that there is not: the default would silently stay in force.

    Raises:
        ConfigurationError: Names it, the known ones, and the one that may be meant.
    """
    for name in names:
        if name not in known:
            allowed = f"one of {', '.join(known)}{did_you_mean(name, known)}"
            raise ConfigurationError(f"{table} setting".lstrip(), name, allowed, source)


def warn_of_misspelt_variables(
    prefix: str, known: Collection[str], skip: str | None = None
) -> None:
    """Log each variable that is none of the known and nearly one of them, once per process.

    It may belong to another program, so that it cannot be refused.

    Args:
        prefix: What they begin with.
        known: The others' names behind it.
        skip: A prefix of those to leave alone; None = of none.
    """
    for variable in os.environ:
        name = variable.removeprefix(prefix)
        if name == variable or name in known or variable in _looked_at:
            continue
        if skip is not None and variable.startswith(skip):
            continue
        _looked_at.add(variable)
        if hint := did_you_mean(name, known, prefix):
            from logging import getLogger

            getLogger("ultramon").warning("%s is no variable of ultramon%s", variable, hint)


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
                tables = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            source = "ULTRAMON_CONFIG" if named else path
            raise ConfigurationError(path, str(error), "a readable TOML file", source) from error
        for name in tables:
            if name not in TABLES and (hint := did_you_mean(name, TABLES)):
                raise ConfigurationError("table", name, f"one of {', '.join(TABLES)}{hint}", path)
        table = tables.get(section, {})
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


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable says yes, in any usual spelling; empty or missing says no."""
    return environ.get(name, "").lower() not in ("", "0", "false", "no", "off")
