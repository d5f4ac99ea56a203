"""The host's own configuration, as far as a hook needs it. Standard library only."""

from __future__ import annotations

import os
import sys

from ultramon.hosts.calls.host_settings import number_in, read_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOME_VARIABLE = "QWEN_HOME"
RUNTIME_VARIABLE = "QWEN_RUNTIME_DIR"
SESSION_VARIABLE = "QWEN_CODE_SESSION_ID"
"""Set for hooks by newer hosts; version 0.15 sets none of its kind."""
DEFAULTS_VARIABLE = "QWEN_CODE_SYSTEM_DEFAULTS_PATH"
_SYSTEM_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_SYSTEM_FOLDERS = {"darwin": "/Library/Application Support/QwenCode"}
_SYSTEM_FOLDER = "/etc/qwen-code"
FOLDER = ".qwen"
SETTINGS_NAME = "settings.json"

# The host's own arithmetic, confirmed by recordings: version 0.15.10 compacted above 70,000 of
# 100,000 tokens and 91,750 of 131,072; 0.24.4 above 67,000 of 100,000.
_OLD_SHARE = 0.7
_SHARE = 0.85
_RESERVE_TOKENS = 33_000


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the user's settings: ``QWEN_HOME``, else ``~/.qwen``."""
    return environ.get(HOME_VARIABLE) or os.path.join(os.path.expanduser("~"), FOLDER)


def system_defaults_path(environ: Mapping[str, str], system: str = sys.platform) -> str:
    """Return the machine's file of defaults, which all other settings outrank."""
    settings = environ.get(_SYSTEM_VARIABLE)
    folder = _SYSTEM_FOLDERS.get(system, _SYSTEM_FOLDER)
    own = os.path.join(os.path.dirname(settings) if settings else folder, "system-defaults.json")
    return environ.get(DEFAULTS_VARIABLE) or own


def sessions_directory(environ: Mapping[str, str]) -> str:
    """Return the directory below which sessions are kept, in a folder for each project."""
    folder = environ.get(RUNTIME_VARIABLE) or home_directory(environ)
    return os.path.join(folder, "projects")


def compaction_tokens(
    environ: Mapping[str, str], project: str | None, window_tokens: int | None
) -> int | None:
    """Return the tokens at which the host compacts by itself; None where it does not.

    Args:
        environ: The host's environment, which says how old it is.
        project: The project's directory, for its settings; or None.
        window_tokens: The window that the host works with; None = unknown.
    """
    if window_tokens is None:
        return None
    if SESSION_VARIABLE not in environ:
        path = ("model", "chatCompression", "contextPercentageThreshold")
        return int(window_tokens * _share(environ, project, path, _OLD_SHARE)) or None
    share = _share(environ, project, ("context", "autoCompactThreshold"), _SHARE) or _SHARE
    most = window_tokens - _RESERVE_TOKENS
    proportional = int(window_tokens * share)
    return min(proportional, most) if most > 0 else proportional


def _share(
    environ: Mapping[str, str], project: str | None, path: tuple[str, ...], default: float
) -> float:
    """Return a share from 0 to 1 that the settings name; those of the project win."""
    share = default
    folders = [home_directory(environ)]
    if project:
        folders.append(os.path.join(project, FOLDER))
    paths = [os.path.join(folder, SETTINGS_NAME) for folder in folders]
    for settings in read_layers(paths, may_have_comments=True):
        value = number_in(settings, *path)
        if value is not None and value <= 1:
            share = max(0.0, value)
    return share
