"""The client's own configuration, as far as a hook needs it. Standard library only."""

from __future__ import annotations

from ultramon.system import compact_json
from ultramon.system.files import read_start
from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOME_VARIABLE = "GEMINI_CLI_HOME"
FOLDER = ".gemini"
DEFAULT_THRESHOLD_RATIO = 0.5
"""Of the window, where no settings say otherwise."""
SETTINGS_NAME = "settings.json"
_MAX_BYTES = 1 << 20


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the client's directory: ``.gemini`` in ``GEMINI_CLI_HOME``, else in the home."""
    return os.path.join(environ.get(HOME_VARIABLE) or os.path.expanduser("~"), FOLDER)


def compression_ratio(environ: Mapping[str, str], project: str | None) -> float:
    """Return the share of the window at which the client compresses, more than 0.0.

    The settings of the project outrank those of the user; what cannot be read says nothing.
    """
    ratio = DEFAULT_THRESHOLD_RATIO
    paths = [os.path.join(home_directory(environ), SETTINGS_NAME)]
    if project:
        paths.append(os.path.join(project, FOLDER, SETTINGS_NAME))
    for path in paths:
        try:
            settings = compact_json.loads(read_start(path, _MAX_BYTES))
            found = settings["model"]["compressionThreshold"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if type(found) in (int, float) and found > 0:
            ratio = float(found)
    return ratio
