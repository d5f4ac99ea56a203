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
_FOLDER = "opencode"
_IN_MEMORY = ":memory:"


class Store:
    """Where opencode, or a fork of it, keeps its sessions.

    Args:
        host: Name of the host.
        folder: Of its data; databases in it begin with that name.
        database_variable: Names another database.
        home_variable: Moves the folder, which is ``data`` in it then; empty = there is none.
    """

    def __init__(
        self, host: str, folder: str, database_variable: str, home_variable: str = ""
    ) -> None:
        self.host = host
        self.folder = folder
        self.database_variable = database_variable
        self.home_variable = home_variable

    def data_directory(self, environ: Mapping[str, str]) -> str:
        """Return the folder of data: in ``XDG_DATA_HOME``, else in the home."""
        if moved := environ.get(self.home_variable):
            return os.path.join(moved, "data")
        root = environ.get(DATA_VARIABLE) or os.path.expanduser("~/.local/share")
        return os.path.join(root, self.folder)

    def database_path(self, environ: Mapping[str, str]) -> str | None:
        """Return the database of a released version; None = it is kept in memory."""
        chosen = environ.get(self.database_variable) or f"{self.folder}.db"
        return None if chosen == _IN_MEMORY else os.path.join(self.data_directory(environ), chosen)


OPENCODE = Store("opencode", _FOLDER, DATABASE_VARIABLE)


def config_directory(environ: Mapping[str, str]) -> str:
    """Return the user's folder of configuration; with ``~`` where the user has no home."""
    root = environ.get(CONFIG_VARIABLE) or os.path.expanduser("~/.config")
    return os.path.join(root, _FOLDER)
