"""Whether a resident answers, and why none does where the installation asks for none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from ultramon.hosts.claude_code.doctor.examination import INSTALL, Examination
from ultramon.hosts.claude_code.setup.transport import HTTP
from ultramon.hosts.doctor import ok, warning
from ultramon.system.environment import is_on
from ultramon.system.findings import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.installed_choices import InstalledChoices
    from ultramon.hosts.resident.place import Place

_NAME = "resident"
_MEGABYTE = 1_000_000


def check_resident(seen: Examination) -> Iterator[Finding]:
    """Whether one runs, can be asked from here, and is this ultramon's.

    Nothing of it is a problem: without an answer each hook does everything itself.
    """
    if seen.stored is None:
        return
    if not seen.stored.resident:
        yield ok(_NAME, f"none, each hook does everything itself: {_why_none(seen.stored)}")
        return
    # Not on Windows, where nothing of this can be loaded, nor chosen.
    from ultramon.hosts.resident.forwarder import OFF_VARIABLE
    from ultramon.hosts.resident.place import Place

    if is_on(OFF_VARIABLE):
        message = f"{OFF_VARIABLE} is set: hooks started from here ask none"
        yield warning(_NAME, message, f"unset {OFF_VARIABLE}")
    place = Place(seen.state_directory)
    running, folder = place.running(), os.path.dirname(place.socket)
    if running is None:
        if os.environ.get("XDG_RUNTIME_DIR") and not os.access(folder, os.W_OK | os.X_OK):
            message = f"its socket cannot be made in {folder}: each hook does everything itself"
            cure = "set XDG_RUNTIME_DIR to a directory of yours, or unset it"
            yield warning(_NAME, message, cure)
        else:
            yield ok(_NAME, "none runs; the next session starts one")
        return
    if running.get("socket") != place.socket:
        message = f"listens at {running.get('socket')}, hooks started from here ask {place.socket}"
        yield warning(_NAME, message, "start the client with the XDG_RUNTIME_DIR of the others")
        return
    yield _check_answer(place, running["pid"], seen.version)


def _why_none(stored: InstalledChoices) -> str:
    """Return why the installation asks no resident."""
    if stored.resident_choice is False:
        return "--no-resident was chosen"
    if any(one.get("via") == HTTP for one in stored.installations if isinstance(one, dict)):
        return "tool calls are requests to a server"
    if not hasattr(socket, "SO_PEERCRED"):
        return "it needs Linux"
    return f"an older ultramon installed; {INSTALL} changes that"


def _check_answer(place: Place, pid: int, version: str) -> Finding:
    if place.is_paused:
        message = f"process {pid} did not answer in time, and is not asked for a minute"
        return warning(_NAME, message, f"if it happens again: kill {pid}; hooks go on without it")
    facts = place.ask()
    if facts is None:
        return warning(_NAME, f"process {pid} does not answer", f"kill {pid}; hooks go on without")
    if version and facts["version"] != version:
        message = f"process {pid} is of version {facts['version']}, this is {version}"
        cure = f"kill {pid}, or {INSTALL}: a newer one takes its place"
        return warning(_NAME, message, cure)
    return ok(
        _NAME,
        f"process {pid} since {facts['since']}: {facts['sessions']} sessions,"
        f" {facts['calls']:,} calls, {facts['atOnce']:,} of them answered at once,"
        f" {facts['refused']:,} refused, {facts['residentBytes'] / _MEGABYTE:.0f} MB",
    )
