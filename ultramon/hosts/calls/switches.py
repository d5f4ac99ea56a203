"""Whether a call is handled at all, by which choices, and where its states are kept.

Standard library only, and nothing of ultramon: a hook that is switched off loads no more.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RELAY_FOLDER = "relay"
"""Folder of the state directory with one folder for each relay, which holds its choices."""
RELAY_SESSION = "ULTRAMON_RELAY_SESSION"
"""The session that a relay runs, of a host whose sessions inherit the hooks of the relay."""


def state_directory(environ: Mapping[str, str], choices_path: str) -> str:
    """Return where states are kept: as the environment says, else beside the installed choices."""
    chosen = environ.get("ULTRAMON_STATE_DIR")
    return os.path.expanduser(chosen) if chosen else os.path.dirname(choices_path) or os.curdir


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether ``ULTRAMON_DISABLED`` is set."""
    # As `ultramon.system.environment`, which a hook that is switched off does not even load.
    return environ.get("ULTRAMON_DISABLED", "").lower() not in ("", "0", "false", "no", "off")


def is_left_to_relay(environ: Mapping[str, str], choices_path: str) -> bool:
    """Return whether a relay runs this host, and these choices are not the relay's.

    A relay brings hooks of its own along: those of an installation would count everything twice.
    """
    run = environ.get("ULTRAMON_RELAY")
    folder = os.sep.join(("", RELAY_FOLDER, run or ""))
    return bool(run) and not os.path.dirname(choices_path).endswith(folder)


def choices_here(environ: Mapping[str, str], choices_path: str) -> str | None:
    """Return the choices that a call is handled by; None = the hook does nothing.

    In a relay whose host takes hooks from an installation only, they serve the relay.

    Args:
        environ: The host's environment.
        choices_path: Those that the hook was installed with.
    """
    if not is_left_to_relay(environ, choices_path):
        return choices_path
    if RELAY_SESSION not in environ:
        return None
    run, name = environ["ULTRAMON_RELAY"], os.path.basename(choices_path)
    return os.path.join(state_directory(environ, choices_path), RELAY_FOLDER, run, name)
