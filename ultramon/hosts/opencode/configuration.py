"""Where the host keeps its sessions and its configuration. Standard library only."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_VARIABLE = "OPENCODE_DB"
DATA_VARIABLE = "XDG_DATA_HOME"
CONFIG_VARIABLE = "XDG_CONFIG_HOME"
LIMITS_VARIABLE = "OPENCODE_MODEL_LIMITS"
"""Set by the plugin: the limits of the model, which only the client knows."""
FOLDER = "opencode"
DATABASE_NAME = "opencode.db"
_IN_MEMORY = ":memory:"


def data_directory(environ: Mapping[str, str]) -> str:
    """Return the host's folder of data: ``opencode`` in ``XDG_DATA_HOME``, else in the home."""
    root = environ.get(DATA_VARIABLE) or os.path.expanduser("~/.local/share")
    return os.path.join(root, FOLDER)


def database_path(environ: Mapping[str, str]) -> str | None:
    """Return the database of a released version; None = it is kept in memory."""
    chosen = environ.get(DATABASE_VARIABLE) or DATABASE_NAME
    return None if chosen == _IN_MEMORY else os.path.join(data_directory(environ), chosen)


def config_directory(environ: Mapping[str, str]) -> str:
    """Return the user's folder of configuration; with ``~`` where the user has no home."""
    root = environ.get(CONFIG_VARIABLE) or os.path.expanduser("~/.config")
    return os.path.join(root, FOLDER)
