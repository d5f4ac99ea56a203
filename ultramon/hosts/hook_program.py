"""The hook as a program: one call of the client in, at most one line of JSON out, always exit 0.

Standard library only, and as little of that as possible: every tool call of every agent pays.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.hosts.installed_choices import InstalledChoices


def main(argv: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """Handle one call; what goes wrong goes to the failure log and nowhere else.

    Args:
        argv: The program, and the path of the installed choices.
        environ: The client's environment.

    Returns:
        0.
    """
    if is_off(environ) or len(argv) < 2:
        return 0
    directory = state_directory(environ, argv[1])
    event = agent_id = ""
    try:
        from ultramon.hosts.handling import HookCall
        from ultramon.hosts.payload import read_payload
        from ultramon.hosts.store import HookStore

        payload = read_payload(0)
        event, agent_id = payload.event, payload.session_id
        now = time.time()
        installed = load_choices(argv[1], directory, event, now)
        call = HookCall(payload, HookStore(directory, installed, environ, event, now))
        agent_id = call.agent_id
        answer = call.answer()
        if answer:
            os.write(1, answer)
        call.acknowledge()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the client must go on
        _note_failure(directory, event, agent_id, error)
    return 0


def state_directory(environ: Mapping[str, str], choices_path: str) -> str:
    """Return where states are kept: as the environment says, else beside the installed choices."""
    chosen = environ.get("ULTRAMON_STATE_DIR")
    return os.path.expanduser(chosen) if chosen else os.path.dirname(choices_path) or os.curdir


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether ``ULTRAMON_DISABLED`` is set."""
    # As `ultramon.core.switches`, which a hook that is switched off does not even load.
    return environ.get("ULTRAMON_DISABLED", "").lower() not in ("", "0", "false", "no", "off")


def load_choices(path: str, directory: str, event: str, now: float) -> InstalledChoices:
    """Read the choices of the installation; without readable ones nobody is told anything."""
    from ultramon.errors import StateError
    from ultramon.hosts import failure_log
    from ultramon.hosts.installed_choices import NOBODY, InstalledChoices

    try:
        return InstalledChoices.load(path)
    except (StateError, OSError) as error:
        failure_log.record(directory, event, "", str(error), now)
        installed = InstalledChoices(path)
        installed.audience = NOBODY
        return installed


def _note_failure(directory: str, event: str, agent_id: str, error: BaseException) -> None:
    try:
        from ultramon.hosts import failure_log

        problem = f"{type(error).__name__}: {error}"
        failure_log.record(directory, event, agent_id, problem, time.time())
    except BaseException:  # noqa: BLE001 - there is nowhere left to say it
        return
