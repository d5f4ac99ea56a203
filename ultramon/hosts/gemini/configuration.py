"""The host's own configuration, as far as a hook needs it. Standard library only."""

from __future__ import annotations

import os

from ultramon.hosts.calls.host_settings import number_in, read_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOME_VARIABLE = "GEMINI_CLI_HOME"
TEMPORARY_VARIABLE = "TMPDIR"
FOLDER = ".gemini"
DEFAULT_THRESHOLD_RATIO = 0.5
"""Of the window, where no settings say otherwise."""
SETTINGS_NAME = "settings.json"


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the host's directory: ``.gemini`` in ``GEMINI_CLI_HOME``, else in the home."""
    return os.path.join(environ.get(HOME_VARIABLE) or os.path.expanduser("~"), FOLDER)


def compression_ratio(environ: Mapping[str, str], project: str | None) -> float:
    """Return the share of the window at which the host compresses, more than 0.0.

    The settings of the project outrank those of the user; what cannot be read says nothing.
    """
    ratio = DEFAULT_THRESHOLD_RATIO
    paths = [os.path.join(home_directory(environ), SETTINGS_NAME)]
    if project:
        paths.append(os.path.join(project, FOLDER, SETTINGS_NAME))
    for settings in read_layers(paths, may_have_comments=True):
        found = number_in(settings, "model", "compressionThreshold")
        if found is not None and found > 0:
            ratio = found
    return ratio
